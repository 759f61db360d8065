// WordPiece: the longest piece that a word begins with, then the longest that goes on, and so forth.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/byte_trie.h"
#include "mstar/text/tokenizer_spec.h"
#include "mstar/text/vocabulary.h"

namespace mstar::text {

// Thread: const methods from any thread. Move-only.
class WordPiece {
 public:
  // bad_model when the vocabulary lacks the unknown token.
  static Result<WordPiece> build(const ModelSpec& spec, const Vocabulary& vocabulary);

  // Appends the ids of one word (valid UTF-8): one unknown token when pieces don't cover it or when it is longer than
  // max_word_characters. O(bytes · longest piece).
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  ByteTrie starting_, continuing_;
  std::int32_t unknown_id_ = -1;
  std::size_t max_word_characters_ = 0;
};

}  // namespace mstar::text
