// What a tokenizer is made of, as plain values, whichever file they come from; nothing is compiled or indexed yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace mstar::text {

struct PatternSpec {
  std::string_view text;
  bool is_regex = false;
};

struct NormalStepSpec {
  enum class Kind : std::uint8_t {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lowercase,
    replace,
    prepend,
    strip,
    strip_accents,
    bert,
    sentencepiece,
  };
  Kind kind = Kind::nfc;
  PatternSpec pattern;       // replace
  std::string_view content;  // replace, prepend
  bool strip_left = false;
  bool strip_right = false;
  // bert
  bool clean_text = false;
  bool space_chinese = false;
  bool drop_accents = false;
  bool lower = false;
  // sentencepiece: the compiled map of its normalisation rules, or empty; then what is done about spaces
  std::string_view char_map;
  bool dummy_prefix = false;   // a space before the text
  bool merge_spaces = false;   // none at the ends, one of many
  bool escape_spaces = false;  // U+2581 for a space
};

enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

enum class PrependScheme : std::uint8_t { always, first, never };

struct PreTokenStepSpec {
  enum class Kind : std::uint8_t { split, byte_level, metaspace };
  Kind kind = Kind::split;
  PatternSpec pattern;  // split
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  bool add_prefix_space = false;  // byte_level
  bool use_regex = true;
  std::string_view replacement;  // metaspace: what stands for a space
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
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

enum class ModelKind : std::uint8_t {
  byte_bpe,   // BPE over the byte-level alphabet
  bpe,        // BPE over characters
  unigram,    // the likeliest split
  word_piece  // the longest piece first
};

struct ModelSpec {
  ModelKind kind = ModelKind::byte_bpe;
  std::vector<std::pair<std::string_view, std::int32_t>> vocab;
  std::string_view unknown_token;  // empty: none
  // BPE
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // first is most urgent
  std::vector<std::int32_t> merge_ranks;                              // of each merge; empty: its place in the list
  std::string_view end_of_word_suffix;                                // empty: none
  bool fuse_unknown = false;
  bool ignore_merges = false;
  bool byte_fallback = false;  // "<0x0A>" for what the vocabulary lacks; unigram too
  // Unigram: of each entry of `vocab`. An entry of score -infinity is never chosen.
  std::vector<double> scores;
  bool single_precision = false;  // sums as 32-bit floats, as SentencePiece has them
  // WordPiece
  std::string_view continuing_prefix;
  std::int64_t max_word_characters = 100;
};

// How tokens become text again.
struct DecoderSpec {
  enum class Kind : std::uint8_t { plain, byte_level, word_piece };
  Kind kind = Kind::plain;
  std::vector<std::pair<std::string_view, std::string_view>> replacements;  // plain
  bool byte_fallback = false;                                               // "<0x0A>" is a byte
  std::string_view metaspace;  // becomes a space; within the first token nothing, if drop_first_space
  bool drop_first_space = false;
  std::string_view continuing_prefix;  // word_piece
  bool clean_up = false;               // word_piece: no space before punctuation
  std::int64_t strip_spaces = 0;       // from the start of the text
  bool strip_each_token = false;       // that many again from each token, as long as nothing is left of those before
};

// The views point into `document`.
struct TokenizerSpec {
  std::vector<NormalStepSpec> normalizer;
  std::vector<PreTokenStepSpec> pre_tokenizer;
  std::vector<AddedTokenSpec> added_tokens;
  ModelSpec model;
  DecoderSpec decoder;
  std::vector<std::int32_t> prefix_ids;  // what the post-processor puts round one sequence
  std::vector<std::int32_t> suffix_ids;
  std::shared_ptr<const void> document;
};

}  // namespace mstar::text
