#include "mstar/text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <unordered_map>

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

// The fields of a protocol buffer message, one after the other.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : in_(message) {}
  std::uint32_t field = 0;
  std::uint64_t number = 0;  // of a varint, or the bits of a fixed-size field
  std::string_view bytes;    // of a length-delimited field

  // False at the end and on damage.
  bool next() {
    if (in_.empty() || damaged_) return false;
    std::uint64_t tag = 0;
    if (!varint(tag)) return stop();
    field = static_cast<std::uint32_t>(tag >> 3);
    bytes = {};
    switch (tag & 7) {
      case 0:
        return varint(number) || stop();
      case 1:
        return fixed(8) || stop();
      case 2: {
        std::uint64_t size = 0;
        if (!varint(size) || size > in_.size()) return stop();
        bytes = in_.substr(0, size);
        in_.remove_prefix(size);
        return true;
      }
      case 5:
        return fixed(4) || stop();
      default:
        return stop();
    }
  }
  bool damaged() const { return damaged_; }
  float as_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(number)); }

 private:
  bool stop() {
    damaged_ = true;
    return false;
  }
  bool varint(std::uint64_t& out) {
    out = 0;
    for (unsigned shift = 0; shift < 64 && !in_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(in_[0]);
      in_.remove_prefix(1);
      out |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool fixed(std::size_t size) {
    if (in_.size() < size) return false;
    number = 0;
    for (std::size_t i = size; i-- > 0;) number = number << 8 | static_cast<std::uint8_t>(in_[i]);
    in_.remove_prefix(size);
    return true;
  }

  std::string_view in_;
  bool damaged_ = false;
};

Error damaged() { return bad_model("tokenizer.model: the file is damaged"); }

Status read_piece(std::string_view bytes, PieceVocabulary& out) {
  ProtoReader in(bytes);
  PieceVocabulary::Piece piece;
  while (in.next()) {
    if (in.field == 1) piece.text = in.bytes;
    if (in.field == 2) piece.score = in.as_float();
    if (in.field == 3) {
      if (in.number < 1 || in.number > 6) return bad_model("tokenizer.model: a piece of unknown type");
      piece.type = static_cast<PieceVocabulary::Type>(in.number);
    }
  }
  if (in.damaged()) return damaged();
  out.pieces.push_back(std::move(piece));
  return {};
}

Status read_trainer(std::string_view bytes, PieceVocabulary& out) {
  ProtoReader in(bytes);
  out.bos_id = 1;
  out.is_unigram = true;
  while (in.next()) {
    if (in.field == 3) {
      if (in.number != 1 && in.number != 2) return bad_model("tokenizer.model: only BPE and Unigram are supported");
      out.is_unigram = in.number == 1;
    }
    if (in.field == 24 && in.number != 0) return bad_model("tokenizer.model: spaces as suffixes are not supported");
    if (in.field == 35) out.byte_fallback = in.number != 0;
    if (in.field == 41) out.bos_id = static_cast<std::int32_t>(in.number);
  }
  return in.damaged() ? Status(damaged()) : Status();
}

Status read_normalizer(std::string_view bytes, PieceVocabulary& out) {
  ProtoReader in(bytes);
  while (in.next()) {
    if (in.field == 2) out.char_map = in.bytes;
    if (in.field == 3) out.dummy_prefix = in.number != 0;
    if (in.field == 4) out.merge_spaces = in.number != 0;
    if (in.field == 5) out.escape_spaces = in.number != 0;
  }
  return in.damaged() ? Status(damaged()) : Status();
}

// The ranks of scores: the highest is 0, equal scores are equal.
std::vector<std::int32_t> ranks_of(const std::vector<PieceVocabulary::Piece>& pieces) {
  std::vector<float> scores;
  scores.reserve(pieces.size());
  for (const auto& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<std::int32_t> ranks;
  ranks.reserve(pieces.size());
  for (const auto& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<std::int32_t>(at - scores.begin()));
  }
  return ranks;
}

void add_merges(const std::vector<PieceVocabulary::Piece>& pieces, ModelSpec& model) {
  using Type = PieceVocabulary::Type;
  const auto usable = [](Type type) { return type == Type::normal || type == Type::user_defined; };
  std::unordered_map<std::string_view, bool> known;
  known.reserve(pieces.size());
  for (const auto& piece : pieces) {
    if (usable(piece.type)) known.emplace(piece.text, true);
  }
  const std::vector<std::int32_t> ranks = ranks_of(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string_view text = pieces[i].text;
    if (!usable(pieces[i].type)) continue;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<std::uint8_t>(text[cut]) & 0xC0) == 0x80) continue;
      const std::string_view left = text.substr(0, cut), right = text.substr(cut);
      if (!known.contains(left) || !known.contains(right)) continue;
      model.merges.emplace_back(left, right);
      model.merge_ranks.push_back(ranks[i]);
    }
  }
}

}  // namespace

Result<PieceVocabulary> read_model_proto(std::string_view bytes) {
  PieceVocabulary out;
  ProtoReader in(bytes);
  while (in.next()) {
    if (in.field == 1) MSTAR_TRY(read_piece(in.bytes, out));
    if (in.field == 2) MSTAR_TRY(read_trainer(in.bytes, out));
    if (in.field == 3) MSTAR_TRY(read_normalizer(in.bytes, out));
  }
  if (in.damaged() || out.pieces.empty()) return damaged();
  return out;
}

Result<TokenizerSpec> spec_of_pieces(PieceVocabulary vocabulary) {
  using Type = PieceVocabulary::Type;
  const auto document = std::make_shared<const PieceVocabulary>(std::move(vocabulary));
  const auto& pieces = document->pieces;
  TokenizerSpec spec;
  spec.document = document;
  spec.model.kind = document->is_unigram ? ModelKind::unigram : ModelKind::bpe;
  spec.model.byte_fallback = document->byte_fallback;
  spec.model.fuse_unknown = true;
  spec.model.single_precision = true;
  std::unordered_map<std::string_view, bool> seen;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const Type type = pieces[i].type;
    if (!is_valid_utf8(pieces[i].text)) return bad_model("tokenizer: a piece is not UTF-8");
    // Some files pad with empty pieces or repeat one; the first counts.
    if (pieces[i].text.empty() || !seen.emplace(pieces[i].text, true).second) continue;
    spec.model.vocab.emplace_back(pieces[i].text, id);
    const bool chosen = type == Type::normal || type == Type::user_defined;
    spec.model.scores.push_back(chosen ? pieces[i].score : -std::numeric_limits<double>::infinity());
    if (type == Type::unknown) spec.model.unknown_token = pieces[i].text;
    if (type != Type::unknown && type != Type::control && type != Type::user_defined) continue;
    AddedTokenSpec token;
    token.content = pieces[i].text;
    token.id = id;
    token.special = type != Type::user_defined;
    spec.added_tokens.push_back(token);
  }
  if (!document->is_unigram) add_merges(pieces, spec.model);
  NormalStepSpec normal;
  normal.kind = NormalStepSpec::Kind::sentencepiece;
  normal.char_map = document->char_map;
  normal.dummy_prefix = document->dummy_prefix;
  normal.merge_spaces = document->merge_spaces;
  normal.escape_spaces = document->escape_spaces;
  spec.normalizer.push_back(normal);
  spec.decoder.byte_fallback = true;
  spec.decoder.replacements.emplace_back(kEscapedSpace, " ");
  spec.decoder.strip_spaces = document->dummy_prefix || document->merge_spaces ? 1 : 0;
  spec.decoder.strip_each_token = document->merge_spaces;
  const auto bos = static_cast<std::size_t>(document->bos_id);
  if (document->bos_id >= 0 && bos < pieces.size()) spec.prefix_ids.push_back(document->bos_id);
  return spec;
}

Result<TokenizerSpec> read_sentencepiece(std::string_view bytes) {
  MSTAR_TRY_ASSIGN(PieceVocabulary vocabulary, read_model_proto(bytes));
  return spec_of_pieces(std::move(vocabulary));
}

}  // namespace mstar::text
