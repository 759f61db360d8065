#include "mstar/weights/names.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace mstar::weights {

std::string show_name(std::string_view name) {
  constexpr std::size_t kShown = 120;
  std::string out = "'";
  for (const char c : name.substr(0, kShown)) {
    if (c >= 0x20 && c < 0x7f && c != '\\') {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    }
  }
  return out + (name.size() > kShown ? "...'" : "'");
}

std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view name) {
  std::vector<std::string> captures;
  const std::size_t first_star = pattern.find('*');
  if (first_star == std::string_view::npos) return pattern == name ? std::optional(captures) : std::nullopt;
  if (name.substr(0, first_star) != pattern.substr(0, first_star)) return std::nullopt;
  std::size_t at = first_star;  // in name, where the open star begins
  std::string_view rest = pattern.substr(first_star + 1);
  for (std::size_t star = rest.find('*'); star != std::string_view::npos; star = rest.find('*')) {
    const std::size_t found = name.find(rest.substr(0, star), at);
    if (found == std::string_view::npos) return std::nullopt;
    captures.emplace_back(name.substr(at, found - at));
    at = found + star;
    rest.remove_prefix(star + 1);
  }
  if (name.size() < at + rest.size() || name.substr(name.size() - rest.size()) != rest) return std::nullopt;
  captures.emplace_back(name.substr(at, name.size() - rest.size() - at));
  return captures;
}

std::string fill(std::string_view pattern, std::span<const std::string> captures) {
  std::string out;
  std::size_t next = 0;
  for (const char c : pattern) {
    if (c != '*') {
      out += c;
    } else if (next < captures.size()) {
      out += captures[next++];
    }
  }
  return out;
}

int num_stars(std::string_view pattern) { return static_cast<int>(std::count(pattern.begin(), pattern.end(), '*')); }

int edit_distance(std::string_view a, std::string_view b, int limit) {
  const auto too_far = limit + 1;
  const auto lengths = static_cast<std::ptrdiff_t>(a.size()) - static_cast<std::ptrdiff_t>(b.size());
  if (lengths > limit || -lengths > limit) return too_far;
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    int least = row[0];
    for (std::size_t j = 0; j < b.size(); ++j) {
      const int replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
      least = std::min(least, row[j + 1]);
    }
    if (least > limit) return too_far;
  }
  return std::min(row[b.size()], too_far);
}

NearestName::NearestName(std::string_view wanted)
    : wanted_(wanted.substr(0, kMaxNameBytes)), limit_(static_cast<int>(wanted_.size() / 3) + 1) {}

void NearestName::consider(std::string_view candidate) {
  if (limit_ < 0) return;
  const int distance = edit_distance(wanted_, candidate, limit_);
  if (distance > limit_) return;
  best_ = candidate;
  limit_ = distance - 1;  // only a closer one replaces it
}

}  // namespace mstar::weights
