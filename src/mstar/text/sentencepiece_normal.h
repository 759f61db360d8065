// SentencePiece's normaliser: a compiled map of strings, then what is done about spaces.
// Source: sentencepiece/src/normalizer.cc (algorithm), Darts-clone (array format).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// Thread: const methods from any thread.
class SentencePieceNormal {
 public:
  // bad_model on a damaged map.
  static Result<SentencePieceNormal> compile(const NormalStepSpec& spec);

  // `text` must be valid UTF-8, and so is the answer. No space is put before it unless `prefix_allowed`.
  // O(bytes · longest mapped string).
  std::string apply(std::string_view text, bool prefix_allowed) const;

 private:
  struct Prefix {
    std::size_t length_bytes = 0;
    std::string_view normal;
  };
  Prefix first_prefix(std::string_view text) const;

  std::vector<std::uint32_t> units_;  // a double array
  std::string strings_;               // each ends with a NUL
  bool dummy_prefix_ = false;
  bool merge_spaces_ = false;
  std::string space_;
};

}  // namespace mstar::text
