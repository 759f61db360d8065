// The normaliser of a tokenizer: Unicode forms by ICU, lower case, replacement, prefix, strip, BERT's, SentencePiece's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/sentencepiece_normal.h"
#include "mstar/text/split_regex.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// `text` must be valid UTF-8. `kind` is nfc, nfd, nfkc or nfkd. Thread: any.
std::string unicode_form(NormalStepSpec::Kind kind, std::string text);
// Character by character, so a final sigma is not special. Thread: any.
std::string lower_case(std::string_view text);

// Thread: const methods from any thread. Move-only.
class Normalizer {
 public:
  // bad_model when a pattern can't be compiled.
  static Result<Normalizer> compile(const std::vector<NormalStepSpec>& steps);

  bool empty() const { return steps_.empty(); }
  // `text` must be valid UTF-8, and so is the answer. Characters are those of the linked ICU; the
  // `tokenizers` package has the tables of Unicode 9 and leaves later characters as they are.
  // `prefix_allowed`: SentencePiece's step may put a space before the text. Without `at_start` the text goes on from
  // another one: nothing is put before it.
  std::string apply(std::string_view text, bool prefix_allowed = true, bool at_start = true) const;

 private:
  struct Step {
    NormalStepSpec::Kind kind;
    std::vector<SplitRegex> pattern;                 // one for replace
    std::vector<SentencePieceNormal> sentencepiece;  // one for sentencepiece
    std::string content;
    NormalStepSpec spec;  // without its views
  };
  static std::string apply_step(const Step& step, std::string text, bool prefix_allowed);

  std::vector<Step> steps_;
};

}  // namespace mstar::text
