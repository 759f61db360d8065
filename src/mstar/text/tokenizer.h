// Byte-level BPE tokenizers: text to token ids and back, as the Hugging Face `tokenizers` library does it.
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

struct EncodeOptions {
  // Puts the ids of the post-processor's template round the text.
  bool add_special = false;
  // Reads special tokens that are spelt out in the text (a chat template's output). Leave it off for what users write:
  // it then becomes ordinary text whatever it says.
  bool parse_special = false;
  // Reads added tokens that are not special, as "<think>" of Qwen. Off: those become ordinary text too, as a Whisper
  // prompt wants it, whose timestamps are such tokens. Of no effect when parse_special is on.
  bool parse_added = true;
};

// One tokenizer.json, read-only. Thread: const methods from any thread. Move-only; ids and views live as long as it
// does.
//
// What is read: BPE models over the ByteLevel alphabet; normalisers NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend,
// Strip; pre-tokenizers ByteLevel, Split, Digits; the ByteLevel decoder; template, Roberta and Bert post-processors
// (all alone or in a Sequence). Everything else is bad_model, with the name of what is not supported. Truncation and
// padding are the caller's.
class Tokenizer {
 public:
  // Cost: about 30 ms for 50 000 merges. bad_model when the file is no such tokenizer, invalid_request when it can't be
  // read.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string_view json);

  // The ids of `text`, any bytes: ill-formed UTF-8 counts as U+FFFD, one for each maximal subpart. No text yields the
  // id of a special token unless parse_special is set, with two exceptions: special tokens of one symbol, such as "!"
  // in some vocabularies, are a part of the alphabet; and the unknown token stands for bytes that the alphabet lacks
  // (no published byte-level vocabulary lacks one). O(n log n) in the bytes.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of `ids`, always valid UTF-8: bytes that form no character are U+FFFD. Ids that the vocabulary lacks add
  // nothing. skip_special leaves special tokens out (timestamps are not special in most Whisper vocabularies).
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // By the spelling in tokenizer.json, as "Ġthe" or "<|endoftext|>".
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  // Empty for an unknown id.
  std::string_view id_to_token(std::int32_t id) const;
  // The bytes that an id adds to a text, which need not be whole characters; empty for an unknown id.
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

  std::unique_ptr<const Parts> parts_;
};

}  // namespace mstar
