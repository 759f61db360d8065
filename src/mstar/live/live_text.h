// Text of sound that still goes on, which never takes back what it has told.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mstar {

// Hypotheses of a growing stretch of sound come in; what two of them in a row agree on goes out. Source: LocalAgreement
// of Liu et al. 2020 (arXiv 2005.11185), by words; signs of scripts without blanks are words of their own. Words are
// compared without case and punctuation. Thread: one owner.
class LiveText {
 public:
  // What has become certain, to be put behind what was told before.
  std::string hear(std::string_view hypothesis);
  // The stretch has ended: the rest of its last hypothesis. As new afterwards.
  std::string settle(std::string_view hypothesis);
  // Words told so far of this stretch.
  std::size_t num_told() const { return told_.size(); }

 private:
  std::vector<std::string> last_;  // the hypothesis before, as compared
  std::vector<std::string> told_;  // as compared
};

}  // namespace mstar
