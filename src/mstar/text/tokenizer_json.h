// What a Hugging Face tokenizer.json says, as plain values; nothing is compiled or indexed yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::text {

struct PatternSpec {
  std::string_view text;
  bool is_regex = false;
};

struct NormalStepSpec {
  enum class Kind : std::uint8_t { nfc, nfd, nfkc, nfkd, lowercase, replace, prepend, strip };
  Kind kind = Kind::nfc;
  PatternSpec pattern;       // replace
  std::string_view content;  // replace, prepend
  bool strip_left = false;
  bool strip_right = false;
};

enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct PreTokenStepSpec {
  enum class Kind : std::uint8_t { split, byte_level };
  Kind kind = Kind::split;
  PatternSpec pattern;  // split
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  bool add_prefix_space = false;  // byte_level
  bool use_regex = true;
};

struct AddedTokenSpec {
  std::string_view content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;   // matched after the normaliser, in its form; otherwise before it
  bool single_word = false;  // not matched inside of a word
  bool strip_left = false;   // takes the spaces before it along
  bool strip_right = false;
};

struct BpeSpec {
  std::vector<std::pair<std::string_view, std::int32_t>> vocab;
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // first is most urgent
  std::string_view unknown_token;                                     // empty: none
  std::string_view end_of_word_suffix;                                // empty: none
  bool fuse_unknown = false;
  bool ignore_merges = false;
  bool byte_fallback = false;
};

// The views point into `document`.
struct TokenizerSpec {
  std::vector<NormalStepSpec> normalizer;
  std::vector<PreTokenStepSpec> pre_tokenizer;
  std::vector<AddedTokenSpec> added_tokens;
  BpeSpec model;
  std::vector<std::int32_t> prefix_ids;  // what the post-processor puts round one sequence
  std::vector<std::int32_t> suffix_ids;
  std::shared_ptr<const void> document;
};

// bad_model with the path of the field at fault, on malformed JSON and on everything that byte-level BPE here does not
// do. `truncation` and `padding` are left out: callers cut and pad. Cost: about 100 MB/s.
Result<TokenizerSpec> read_tokenizer_json(std::string_view json);

}  // namespace mstar::text
