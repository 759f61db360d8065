// The model of a tokenizer.json.
#include <limits>

#include "mstar/text/json_fields.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {
namespace {

// "left right", or ["left", "right"].
Result<std::pair<std::string_view, std::string_view>> read_merge(const dom::element& e) {
  constexpr std::string_view kWhere = "model.merges";
  std::string_view line;
  if (e.get_string().get(line) == simdjson::SUCCESS) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return fault(kWhere, "a merge must be two tokens with one space between");
    }
    return std::pair(line.substr(0, space), line.substr(space + 1));
  }
  dom::array pair;
  if (e.get_array().get(pair) != simdjson::SUCCESS || pair.size() != 2)
    return fault(kWhere, "a merge must be two tokens");
  MSTAR_TRY_ASSIGN(const std::string_view left, string_of(pair.at(0).value_unsafe(), kWhere));
  MSTAR_TRY_ASSIGN(const std::string_view right, string_of(pair.at(1).value_unsafe(), kWhere));
  return std::pair(left, right);
}

Status read_bpe_options(const dom::object& o, ModelSpec& model) {
  constexpr std::string_view kWhere = "model";
  if (const auto dropout = member(o, "dropout")) {
    double value = 0;
    if (dropout->get_double().get(value) != simdjson::SUCCESS || value != 0) return unsupported(kWhere, "dropout");
  }
  if (const auto prefix = member(o, "continuing_subword_prefix")) {
    MSTAR_TRY_ASSIGN(const std::string_view text, string_of(*prefix, "model.continuing_subword_prefix"));
    if (!text.empty()) return unsupported(kWhere, "continuing_subword_prefix");
  }
  if (const auto suffix = member(o, "end_of_word_suffix")) {
    MSTAR_TRY_ASSIGN(model.end_of_word_suffix, string_of(*suffix, "model.end_of_word_suffix"));
  }
  if (const auto unknown = member(o, "unk_token")) {
    MSTAR_TRY_ASSIGN(model.unknown_token, string_of(*unknown, "model.unk_token"));
  }
  MSTAR_TRY_ASSIGN(model.fuse_unknown, bool_at(o, "fuse_unk", false, kWhere));
  MSTAR_TRY_ASSIGN(model.ignore_merges, bool_at(o, "ignore_merges", false, kWhere));
  MSTAR_TRY_ASSIGN(model.byte_fallback, bool_at(o, "byte_fallback", false, kWhere));
  return {};
}

Status read_vocab(const dom::object& o, ModelSpec& model) {
  const auto vocab = member(o, "vocab");
  if (!vocab) return fault("model", "lacks vocab");
  MSTAR_TRY_ASSIGN(const dom::object tokens, object_of(*vocab, "model.vocab"));
  model.vocab.reserve(tokens.size());
  for (const auto token : tokens) {
    MSTAR_TRY_ASSIGN(const std::int32_t id, id_of(token.value, "model.vocab"));
    model.vocab.emplace_back(token.key, id);
  }
  return {};
}

Status read_bpe(const dom::object& o, ModelSpec& model) {
  MSTAR_TRY(read_bpe_options(o, model));
  MSTAR_TRY(read_vocab(o, model));
  MSTAR_TRY_ASSIGN(const dom::array merges, array_at(o, "merges", "model"));
  model.merges.reserve(merges.size());
  for (const dom::element merge : merges) {
    std::string_view line;
    if (merge.get_string().get(line) == simdjson::SUCCESS && line.starts_with("#version")) continue;
    MSTAR_TRY_ASSIGN(const auto pair, read_merge(merge));
    model.merges.push_back(pair);
  }
  return {};
}

Status read_word_piece(const dom::object& o, ModelSpec& model) {
  model.kind = ModelKind::word_piece;
  MSTAR_TRY(read_vocab(o, model));
  MSTAR_TRY_ASSIGN(model.unknown_token, string_at(o, "unk_token", "model"));
  MSTAR_TRY_ASSIGN(model.continuing_prefix, string_at(o, "continuing_subword_prefix", "model"));
  MSTAR_TRY_ASSIGN(model.max_word_characters, count_at(o, "max_input_chars_per_word", 100, "model"));
  return {};
}

Status read_unigram(const dom::object& o, ModelSpec& model) {
  constexpr std::string_view kWhere = "model.vocab";
  model.kind = ModelKind::unigram;
  MSTAR_TRY_ASSIGN(model.byte_fallback, bool_at(o, "byte_fallback", false, "model"));
  MSTAR_TRY_ASSIGN(const dom::array pieces, array_at(o, "vocab", "model"));
  for (const dom::element piece : pieces) {
    dom::array pair;
    double score = 0;
    if (piece.get_array().get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(1).get_double().get(score) != simdjson::SUCCESS)
      return fault(kWhere, "an entry must be [token, score]");
    dom::element text;
    if (pair.at(0).get(text) != simdjson::SUCCESS) return fault(kWhere, "an entry must be [token, score]");
    MSTAR_TRY_ASSIGN(const std::string_view token, string_of(text, kWhere));
    model.vocab.emplace_back(token, static_cast<std::int32_t>(model.vocab.size()));
    model.scores.push_back(score);
  }
  if (member(o, "unk_id")) {
    MSTAR_TRY_ASSIGN(const std::int64_t id, count_at(o, "unk_id", 0, "model"));
    if (id >= static_cast<std::int64_t>(model.vocab.size())) return fault("model.unk_id", "is no id of the vocabulary");
    model.unknown_token = model.vocab[static_cast<std::size_t>(id)].first;
  }
  return {};
}

}  // namespace

Status read_model(const dom::element& e, ModelSpec& model) {
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, "model"));
  // Old files leave the type out.
  std::string_view type = member(o, "merges") ? "BPE" : member(o, "unk_id") ? "Unigram" : "WordPiece";
  if (const auto name = member(o, "type")) {
    MSTAR_TRY_ASSIGN(type, string_of(*name, "model.type"));
  }
  if (type == "BPE") return read_bpe(o, model);
  if (type == "WordPiece") return read_word_piece(o, model);
  if (type == "Unigram") return read_unigram(o, model);
  return unsupported("model.type", type);
}

}  // namespace mstar::text
