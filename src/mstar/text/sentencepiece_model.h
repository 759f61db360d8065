// Reads SentencePiece's tokenizer.model, and turns its kind of vocabulary into a tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// A vocabulary of pieces with scores, as tokenizer.model and GGUF files have it. Ids are places in `pieces`.
struct PieceVocabulary {
  enum class Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;
  bool is_unigram = false;
  bool byte_fallback = false;
  bool dummy_prefix = true;
  bool merge_spaces = true;
  bool escape_spaces = true;
  std::string char_map;
  std::int32_t bos_id = -1;
};

// bad_model on a damaged file, on kinds other than BPE and Unigram, and on pieces with spaces as a suffix.
Result<PieceVocabulary> read_model_proto(std::string_view bytes);
// The tokenizer of a vocabulary. For BPE, each way to cut a piece in two pieces is a merge, and the piece's score its
// urgency.
Result<TokenizerSpec> spec_of_pieces(PieceVocabulary vocabulary);
Result<TokenizerSpec> read_sentencepiece(std::string_view bytes);

}  // namespace mstar::text
