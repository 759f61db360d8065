// Token strings and the bytes they stand for, by id and by string.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::text {

// Built once, then read-only. Thread: const methods from any thread. Move-only.
class Vocabulary {
 public:
  struct Entry {
    std::string_view token;        // as tokenizer.json spells it
    std::string_view bytes;        // what it adds to a decoded text
    std::string_view first_bytes;  // the same where it comes first
    std::int32_t id = 0;
    bool is_added = false;  // an added token may rename an id of the model, and takes its place in id order
    bool is_special = false;
  };
  // bad_model on an id that two tokens share, on a token with two ids, and on ids far beyond the count of tokens. An
  // added token may repeat a token of the model.
  static Result<Vocabulary> build(const std::vector<Entry>& entries);

  // One more than the largest id; ids between may be unused.
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::optional<std::int32_t> find(std::string_view token) const;
  // Empty for an id that is unused or out of range.
  std::string_view token(std::int32_t id) const { return in_range(id) ? tokens_[index(id)].token : std::string_view(); }
  std::string_view bytes(std::int32_t id) const { return in_range(id) ? tokens_[index(id)].bytes : std::string_view(); }
  std::string_view first_bytes(std::int32_t id) const {
    return in_range(id) ? tokens_[index(id)].first_bytes : std::string_view();
  }
  bool is_special(std::int32_t id) const { return in_range(id) && tokens_[index(id)].is_special; }
  bool is_added(std::int32_t id) const { return in_range(id) && tokens_[index(id)].is_added; }

 private:
  struct Token {
    std::string_view token;
    std::string_view bytes;
    std::string_view first_bytes;
    bool is_added = false;
    bool is_special = false;
  };
  bool in_range(std::int32_t id) const { return id >= 0 && id < size(); }
  static std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

  std::unique_ptr<char[]> text_;  // what all views point into
  std::vector<Token> tokens_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

// The ids of "<0x00>" to "<0xFF>"; false when one is missing.
bool find_byte_tokens(const Vocabulary& vocabulary, std::array<std::int32_t, 256>& ids);

}  // namespace mstar::text
