#include "mstar/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace mstar {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  std::erase_if(strings_, [](const std::string& each) { return each.empty(); });
}

std::string StopStrings::push(std::string_view text) {
  if (matched_) return {};
  if (strings_.empty()) return std::string(text);
  held_ += text;
  // The match that is whole first, so that the pieces' borders decide nothing; of two, the longer.
  std::size_t begin = 0, end = std::string::npos;
  for (const std::string& each : strings_) {
    const std::size_t at = held_.find(each);
    if (at == std::string::npos || at + each.size() > end) continue;
    begin = at + each.size() < end ? at : std::min(begin, at);
    end = at + each.size();
  }
  if (end != std::string::npos) {
    matched_ = true;
    std::string out = held_.substr(0, begin);
    held_.clear();
    return out;
  }
  // The longest end of the text that a stop string begins with.
  std::size_t keep = 0;
  for (const std::string& each : strings_) {
    for (std::size_t n = std::min(each.size() - 1, held_.size()); n > keep; --n) {
      if (!held_.ends_with(std::string_view(each).substr(0, n))) continue;
      keep = n;
      break;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopStrings::finish() { return matched_ ? std::string() : std::exchange(held_, {}); }

}  // namespace mstar
