// The normaliser of a tokenizer.json: Unicode forms by ICU, lower case, replacement, prefix, strip.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/split_regex.h"
#include "mstar/text/tokenizer_json.h"

namespace mstar::text {

// Thread: const methods from any thread. Move-only.
class Normalizer {
 public:
  // bad_model when a pattern can't be compiled.
  static Result<Normalizer> compile(const std::vector<NormalStepSpec>& steps);

  bool empty() const { return steps_.empty(); }
  // `text` must be valid UTF-8, and so is the answer. Characters are those of the linked ICU; the
  // `tokenizers` package has the tables of Unicode 9 and leaves later characters as they are.
  std::string apply(std::string_view text) const;

 private:
  struct Step {
    NormalStepSpec::Kind kind;
    std::vector<SplitRegex> pattern;  // one for replace
    std::string content;
    bool strip_left;
    bool strip_right;
  };
  static std::string apply_step(const Step& step, std::string text);

  std::vector<Step> steps_;
};

}  // namespace mstar::text
