// Text to token ids and back, as the Hugging Face `tokenizers` library and SentencePiece do it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar {

namespace text {
struct TokenizerSpec;
}

struct EncodeOptions {
  // Puts the ids of the post-processor's template round the text.
  bool add_special = false;
  // Reads special tokens that are spelt out in the text (a chat template's output). Leave it off for what users write:
  // it then becomes ordinary text whatever it says.
  bool parse_special = false;
  // Reads added tokens that are not special, as "<think>" of Qwen. Off: those become ordinary text too, as a Whisper
  // prompt wants it, whose timestamps are such tokens. Of no effect when parse_special is on.
  bool parse_added = true;
  // The text holds parts that went through Tokenizer::guard: no special token is read across a guard, and the guards
  // are left out.
  bool guarded = false;
};

// Where a decoding is: one for each stream of ids.
struct DecodeState {
  bool started = false;
  std::int64_t stripped_spaces = 0;
};

// A tokenizer as GGUF metadata hold it (tokenizer.ggml.*).
struct GgufTokenizer {
  std::string model;  // "gpt2": byte-level BPE; "llama": SentencePiece BPE; "t5": Unigram; "bert": WordPiece
  std::string pre;    // which split of words, of gpt2
  std::vector<std::string> tokens;
  std::vector<std::string> merges;        // gpt2
  std::vector<float> scores;              // llama, t5
  std::vector<std::int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; or empty
  std::optional<std::int32_t> bos_id, eos_id, unknown_id;
  // Unset: as the kind of model has it; of gpt2, as llama.cpp has it for `pre`.
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_spaces;
  std::string char_map;  // precompiled_charsmap
};

// One tokenizer, read-only. Thread: const methods from any thread. Move-only; ids and views live as long as it does.
//
// What is read of tokenizer.json: models BPE (byte-level or over characters, with byte fallback), Unigram, WordPiece;
// normalisers NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, StripAccents, BertNormalizer, Precompiled (as
// SentencePiece applies it: the longest match, not by grapheme clusters); pre-tokenizers ByteLevel, Split, Digits,
// Metaspace, BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation; decoders ByteLevel, ByteFallback, Fuse,
// Replace, Strip (spaces at the start), Metaspace, WordPiece; template, Roberta and Bert post-processors; all alone or
// in a Sequence. Everything else is bad_model, with the name of what is not supported. Truncation and padding are the
// caller's.
class Tokenizer {
 public:
  // tokenizer.json, or SentencePiece's tokenizer.model where the name ends in ".model". Cost: about 30 ms for 50 000
  // merges. bad_model when the file is no such tokenizer, invalid_request when it can't be read.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string_view json);
  // A serialised ModelProto of kind BPE or Unigram. The prefix and suffix of add_special are its bos alone. Control
  // pieces are special, user-defined ones are added tokens.
  static Result<Tokenizer> parse_sentencepiece(std::string_view model);
  // bad_model, with the name, for a model or a pre-tokenizer that is not known here.
  static Result<Tokenizer> from_gguf(const GgufTokenizer& metadata);

  // The ids of `text`, any bytes: ill-formed UTF-8 counts as U+FFFD, one for each maximal subpart. No text yields the
  // id of a special token unless parse_special is set, with two exceptions: special tokens of one symbol, such as "!"
  // in some vocabularies, are a part of the alphabet; and the unknown token stands for bytes that the alphabet lacks
  // (no published byte-level vocabulary lacks one). O(n log n) in the bytes.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // `user_text` with a mark (U+FDD0, which becomes U+FFFD where the text itself holds it) within each special token
  // that it spells out, and where it could be a part of one with what stands beside it (see special_guard.h): after
  // chat templates and other joining, encode({.parse_special = true, .guarded = true}) reads the special tokens of the
  // template and none of the user's. All other text comes back as it is, so that templates can compare it.
  std::string guard(std::string_view user_text) const;

  // The text of `ids`, always valid UTF-8: bytes that form no character are U+FFFD, one for each maximal subpart. Ids
  // that the vocabulary lacks add nothing. skip_special leaves special tokens out (timestamps are not special in most
  // Whisper vocabularies).
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // By the spelling in tokenizer.json, as "Ġthe" or "<|endoftext|>".
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  // Empty for an unknown id.
  std::string_view id_to_token(std::int32_t id) const;
  // Appends what `id` adds to a text that is decoded so far as `state` says, which need not be whole characters.
  void append_bytes(std::int32_t id, DecodeState& state, std::string& out) const;
  // The bytes that an id adds to a text where it is not the first; empty for an unknown id.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  // Special or not.
  bool is_added(std::int32_t id) const;
  // One more than the largest id, so a model's logits may have more columns, and ids below it may be unused.
  std::int32_t vocab_size() const;

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  static Result<std::unique_ptr<Parts>> build(const text::TokenizerSpec& spec);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace mstar
