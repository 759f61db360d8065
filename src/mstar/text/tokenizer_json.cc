#include "mstar/text/tokenizer_json.h"

#include <algorithm>
#include <deque>

#include "mstar/text/json_fields.h"

namespace mstar::text {
namespace {

constexpr std::size_t kMaxJsonBytes = 256u << 20;

// What the views of a spec point into.
struct Document {
  dom::parser parser;
  std::deque<std::string> texts;
};

Status append_template_token(const dom::object& token, const dom::object& o, std::vector<std::int32_t>& ids) {
  constexpr std::string_view kWhere = "post_processor";
  MSTAR_TRY_ASSIGN(const std::string_view name, string_at(token, "id", kWhere));
  const auto table = member(o, "special_tokens");
  if (!table) return fault(kWhere, "lacks special_tokens");
  MSTAR_TRY_ASSIGN(const dom::object tokens, object_of(*table, kWhere));
  const auto entry = member(tokens, name);
  if (!entry) return fault(kWhere, "special_tokens lacks " + std::string(name));
  MSTAR_TRY_ASSIGN(const dom::object fields, object_of(*entry, kWhere));
  MSTAR_TRY_ASSIGN(const dom::array list, array_at(fields, "ids", kWhere));
  for (const dom::element e : list) {
    MSTAR_TRY_ASSIGN(const std::int32_t id, id_of(e, kWhere));
    ids.push_back(id);
  }
  return {};
}

Status read_template(const dom::object& o, TokenizerSpec& spec) {
  constexpr std::string_view kWhere = "post_processor";
  MSTAR_TRY_ASSIGN(const dom::array pieces, array_at(o, "single", kWhere));
  std::vector<std::int32_t> before, after;
  int sequences = 0;
  for (const dom::element piece : pieces) {
    MSTAR_TRY_ASSIGN(const dom::object fields, object_of(piece, kWhere));
    if (const auto sequence = member(fields, "Sequence")) {
      MSTAR_TRY_ASSIGN(const dom::object which, object_of(*sequence, kWhere));
      MSTAR_TRY_ASSIGN(const std::string_view name, string_at(which, "id", kWhere));
      if (name != "A" || ++sequences > 1) return fault(kWhere, "single must hold the sequence A once");
    } else if (const auto token = member(fields, "SpecialToken")) {
      MSTAR_TRY_ASSIGN(const dom::object named, object_of(*token, kWhere));
      MSTAR_TRY(append_template_token(named, o, sequences == 0 ? before : after));
    } else {
      return fault(kWhere, "a piece is neither Sequence nor SpecialToken");
    }
  }
  if (sequences != 1) return fault(kWhere, "single must hold the sequence A once");
  spec.prefix_ids.insert(spec.prefix_ids.begin(), before.begin(), before.end());
  spec.suffix_ids.insert(spec.suffix_ids.end(), after.begin(), after.end());
  return {};
}

Status read_post_processor(const dom::element& e, int depth, TokenizerSpec& spec) {
  constexpr std::string_view kWhere = "post_processor";
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, kWhere));
  MSTAR_TRY_ASSIGN(const std::string_view type, string_at(o, "type", kWhere));
  if (type == "ByteLevel") return {};  // corrects offsets only
  if (type == "TemplateProcessing") return read_template(o, spec);
  if (type == "Sequence" && depth < kMaxNesting) {
    MSTAR_TRY_ASSIGN(const dom::array steps, array_at(o, "processors", kWhere));
    for (const dom::element step : steps) MSTAR_TRY(read_post_processor(step, depth + 1, spec));
    return {};
  }
  if (type != "RobertaProcessing" && type != "BertProcessing") return unsupported(kWhere, type);
  for (const bool first : {true, false}) {
    MSTAR_TRY_ASSIGN(const dom::array pair, array_at(o, first ? "cls" : "sep", kWhere));
    if (pair.size() != 2) return fault(kWhere, "cls and sep must be [token, id]");
    MSTAR_TRY_ASSIGN(const std::int32_t id, id_of(pair.at(1).value_unsafe(), kWhere));
    if (first) {
      spec.prefix_ids.insert(spec.prefix_ids.begin(), id);
    } else {
      spec.suffix_ids.push_back(id);
    }
  }
  return {};
}

Status read_added_tokens(const dom::element& e, TokenizerSpec& spec) {
  constexpr std::string_view kWhere = "added_tokens";
  dom::array list;
  if (e.get_array().get(list) != simdjson::SUCCESS) return fault(kWhere, "must be a list");
  for (const dom::element entry : list) {
    MSTAR_TRY_ASSIGN(const dom::object o, object_of(entry, kWhere));
    AddedTokenSpec token;
    MSTAR_TRY_ASSIGN(token.content, string_at(o, "content", kWhere));
    if (token.content.empty()) continue;
    const auto id = member(o, "id");
    if (!id) return fault(kWhere, "lacks id");
    MSTAR_TRY_ASSIGN(token.id, id_of(*id, "added_tokens.id"));
    MSTAR_TRY_ASSIGN(token.special, bool_at(o, "special", false, kWhere));
    MSTAR_TRY_ASSIGN(token.normalized, bool_at(o, "normalized", !token.special, kWhere));
    MSTAR_TRY_ASSIGN(token.single_word, bool_at(o, "single_word", false, kWhere));
    MSTAR_TRY_ASSIGN(token.strip_left, bool_at(o, "lstrip", false, kWhere));
    MSTAR_TRY_ASSIGN(token.strip_right, bool_at(o, "rstrip", false, kWhere));
    spec.added_tokens.push_back(token);
  }
  return {};
}

}  // namespace

std::string_view keep_text(TokenizerSpec& spec, std::string text) {
  auto document = std::static_pointer_cast<Document>(std::const_pointer_cast<void>(spec.document));
  return document->texts.emplace_back(std::move(text));
}

Result<TokenizerSpec> read_tokenizer_json(std::string_view json) {
  if (json.size() > kMaxJsonBytes) return fault("file", "is longer than 256 MiB");
  auto document = std::make_shared<Document>();
  dom::element root;
  if (const auto error = document->parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return fault("file", simdjson::error_message(error));
  }
  TokenizerSpec spec;
  spec.document = document;
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(root, "file"));
  if (const auto e = member(o, "normalizer")) MSTAR_TRY(read_normalizer(*e, 0, spec));
  if (const auto e = member(o, "pre_tokenizer")) MSTAR_TRY(read_pre_tokenizer(*e, 0, spec));
  const auto decoder = member(o, "decoder");
  if (!decoder) return unsupported("decoder", "null");
  MSTAR_TRY(read_decoder(*decoder, 0, spec));
  if (const auto e = member(o, "post_processor")) MSTAR_TRY(read_post_processor(*e, 0, spec));
  if (const auto e = member(o, "added_tokens")) MSTAR_TRY(read_added_tokens(*e, spec));
  const auto model = member(o, "model");
  if (!model) return fault("file", "lacks model");
  MSTAR_TRY(read_model(*model, spec.model));
  const bool byte_level =
      std::any_of(spec.pre_tokenizer.begin(), spec.pre_tokenizer.end(),
                  [](const PreTokenStepSpec& step) { return step.kind == PreTokenStepSpec::Kind::byte_level; });
  if (spec.model.kind == ModelKind::byte_bpe && !byte_level) spec.model.kind = ModelKind::bpe;
  if (spec.model.kind != ModelKind::byte_bpe && byte_level) return unsupported("pre_tokenizer", "ByteLevel here");
  return spec;
}

}  // namespace mstar::text
