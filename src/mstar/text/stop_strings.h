// Stop strings in text that comes in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mstar {

// Holds back what may be the beginning of a stop string. Thread: one owner. Cost of a push: the bytes that are held or
// new, times the number of stop strings.
class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> strings);

  // The text that is certain now; everything before the stop string that is whole first, once one is (matched() is true
  // then, and what follows is dropped). Cuts only where `text` or a stop string begins, so whole characters stay whole.
  std::string push(std::string_view text);
  // What was held back; the text has ended.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace mstar
