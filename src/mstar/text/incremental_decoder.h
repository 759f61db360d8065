// Token ids to text as they come, never cutting a character.
#pragma once

#include <cstdint>
#include <string>

#include "mstar/text/tokenizer.h"

namespace mstar {

// For one stream of ids. What all push calls and finish return, put together, is Tokenizer::decode of all ids.
// Thread: one owner. The tokenizer is borrowed.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that became certain by `id`, maybe none. At most 3 bytes wait.
  std::string push(std::int32_t id);
  // U+FFFD for the start of a character that waits, else nothing. The decoder is then as new.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  DecodeState state_;
  std::string waiting_;
};

}  // namespace mstar
