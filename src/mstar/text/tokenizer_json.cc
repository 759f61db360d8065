#include "mstar/text/tokenizer_json.h"

#include <simdjson.h>

#include <limits>
#include <optional>
#include <string>

namespace mstar::text {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kMaxJsonBytes = 256u << 20;
// The longest sequence of sequences of steps that anybody writes is two deep.
constexpr int kMaxNesting = 8;

Error fault(std::string_view where, std::string_view what) {
  std::string message = "tokenizer.json: ";
  message.append(where).append(": ").append(what);
  return bad_model(std::move(message));
}
Error unsupported(std::string_view where, std::string_view what) {
  return fault(where, std::string(what) + " is not supported");
}

bool is_set(const dom::element& e) { return !e.is_null(); }

// A member, or null when it is missing or null.
std::optional<dom::element> member(const dom::object& o, std::string_view name) {
  dom::element e;
  if (o.at_key(name).get(e) != simdjson::SUCCESS || !is_set(e)) return std::nullopt;
  return e;
}

Result<std::string_view> string_of(const dom::element& e, std::string_view where) {
  std::string_view text;
  if (e.get_string().get(text) != simdjson::SUCCESS) return fault(where, "must be a string");
  return text;
}
Result<std::string_view> string_at(const dom::object& o, std::string_view name, std::string_view where) {
  const auto e = member(o, name);
  if (!e) return fault(where, "lacks " + std::string(name));
  return string_of(*e, std::string(where) + "." + std::string(name));
}
Result<bool> bool_at(const dom::object& o, std::string_view name, bool fallback, std::string_view where) {
  const auto e = member(o, name);
  if (!e) return fallback;
  bool value = false;
  if (e->get_bool().get(value) != simdjson::SUCCESS) {
    return fault(std::string(where) + "." + std::string(name), "must be true or false");
  }
  return value;
}
Result<std::int32_t> id_of(const dom::element& e, std::string_view where) {
  std::int64_t id = -1;
  if (e.get_int64().get(id) != simdjson::SUCCESS || id < 0 || id >= std::numeric_limits<std::int32_t>::max()) {
    return fault(where, "must be a token id of 0 or more");
  }
  return static_cast<std::int32_t>(id);
}
Result<dom::object> object_of(const dom::element& e, std::string_view where) {
  dom::object o;
  if (e.get_object().get(o) != simdjson::SUCCESS) return fault(where, "must be an object");
  return o;
}
Result<dom::array> array_at(const dom::object& o, std::string_view name, std::string_view where) {
  const auto e = member(o, name);
  dom::array a;
  if (!e || e->get_array().get(a) != simdjson::SUCCESS) return fault(where, std::string(name) + " must be a list");
  return a;
}

// {"String": "..."} or {"Regex": "..."}
Result<PatternSpec> read_pattern(const dom::object& o, std::string_view where) {
  const auto e = member(o, "pattern");
  if (!e) return fault(where, "lacks pattern");
  MSTAR_TRY_ASSIGN(const dom::object pattern, object_of(*e, where));
  if (const auto text = member(pattern, "String")) {
    MSTAR_TRY_ASSIGN(const std::string_view value, string_of(*text, where));
    return PatternSpec{value, false};
  }
  if (const auto regex = member(pattern, "Regex")) {
    MSTAR_TRY_ASSIGN(const std::string_view value, string_of(*regex, where));
    return PatternSpec{value, true};
  }
  return fault(where, "pattern must be a String or a Regex");
}

Status read_normalizer(const dom::element& e, int depth, TokenizerSpec& spec) {
  constexpr std::string_view kWhere = "normalizer";
  using Kind = NormalStepSpec::Kind;
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, kWhere));
  MSTAR_TRY_ASSIGN(const std::string_view type, string_at(o, "type", kWhere));
  if (type == "Sequence") {
    if (depth >= kMaxNesting) return fault(kWhere, "is nested too deeply");
    MSTAR_TRY_ASSIGN(const dom::array steps, array_at(o, "normalizers", kWhere));
    for (const dom::element step : steps) MSTAR_TRY(read_normalizer(step, depth + 1, spec));
    return {};
  }
  NormalStepSpec step;
  if (type == "NFC") {
    step.kind = Kind::nfc;
  } else if (type == "NFD") {
    step.kind = Kind::nfd;
  } else if (type == "NFKC") {
    step.kind = Kind::nfkc;
  } else if (type == "NFKD") {
    step.kind = Kind::nfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::lowercase;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    MSTAR_TRY_ASSIGN(step.pattern, read_pattern(o, kWhere));
    MSTAR_TRY_ASSIGN(step.content, string_at(o, "content", kWhere));
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    MSTAR_TRY_ASSIGN(step.content, string_at(o, "prepend", kWhere));
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    MSTAR_TRY_ASSIGN(step.strip_left, bool_at(o, "strip_left", true, kWhere));
    MSTAR_TRY_ASSIGN(step.strip_right, bool_at(o, "strip_right", true, kWhere));
  } else {
    return unsupported(kWhere, type);
  }
  spec.normalizer.push_back(step);
  return {};
}

Result<SplitBehavior> read_behavior(const dom::object& o, std::string_view where) {
  MSTAR_TRY_ASSIGN(const std::string_view name, string_at(o, "behavior", where));
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return unsupported(where, "behavior " + std::string(name));
}

Status read_pre_tokenizer(const dom::element& e, int depth, TokenizerSpec& spec) {
  constexpr std::string_view kWhere = "pre_tokenizer";
  using Kind = PreTokenStepSpec::Kind;
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, kWhere));
  MSTAR_TRY_ASSIGN(const std::string_view type, string_at(o, "type", kWhere));
  if (type == "Sequence") {
    if (depth >= kMaxNesting) return fault(kWhere, "is nested too deeply");
    MSTAR_TRY_ASSIGN(const dom::array steps, array_at(o, "pretokenizers", kWhere));
    for (const dom::element step : steps) MSTAR_TRY(read_pre_tokenizer(step, depth + 1, spec));
    return {};
  }
  if (!spec.pre_tokenizer.empty() && spec.pre_tokenizer.back().kind == Kind::byte_level) {
    return unsupported(kWhere, std::string(type) + " after ByteLevel");
  }
  PreTokenStepSpec step;
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    MSTAR_TRY_ASSIGN(step.add_prefix_space, bool_at(o, "add_prefix_space", true, kWhere));
    MSTAR_TRY_ASSIGN(step.use_regex, bool_at(o, "use_regex", true, kWhere));
  } else if (type == "Split") {
    MSTAR_TRY_ASSIGN(step.pattern, read_pattern(o, kWhere));
    MSTAR_TRY_ASSIGN(step.behavior, read_behavior(o, kWhere));
    MSTAR_TRY_ASSIGN(step.invert, bool_at(o, "invert", false, kWhere));
  } else if (type == "Digits") {
    step.pattern = {"\\p{N}", true};
    MSTAR_TRY_ASSIGN(const bool each, bool_at(o, "individual_digits", false, kWhere));
    step.behavior = each ? SplitBehavior::isolated : SplitBehavior::contiguous;
  } else {
    return unsupported(kWhere, type);
  }
  spec.pre_tokenizer.push_back(step);
  return {};
}

Status read_decoder(const dom::element& e, int depth) {
  constexpr std::string_view kWhere = "decoder";
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, kWhere));
  MSTAR_TRY_ASSIGN(const std::string_view type, string_at(o, "type", kWhere));
  if (type == "Sequence" && depth < kMaxNesting) {
    MSTAR_TRY_ASSIGN(const dom::array steps, array_at(o, "decoders", kWhere));
    if (steps.size() != 1) return unsupported(kWhere, "Sequence of other than one step");
    return read_decoder(steps.at(0).value_unsafe(), depth + 1);
  }
  if (type != "ByteLevel") return unsupported(kWhere, type);
  return {};
}

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

Status read_model_options(const dom::object& o, BpeSpec& model) {
  constexpr std::string_view kWhere = "model";
  if (const auto type = member(o, "type")) {
    MSTAR_TRY_ASSIGN(const std::string_view name, string_of(*type, "model.type"));
    if (name != "BPE") return unsupported("model.type", name);
  }
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

Status read_model(const dom::element& e, BpeSpec& model) {
  constexpr std::string_view kWhere = "model";
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, kWhere));
  MSTAR_TRY(read_model_options(o, model));
  const auto vocab = member(o, "vocab");
  if (!vocab) return fault(kWhere, "lacks vocab");
  MSTAR_TRY_ASSIGN(const dom::object tokens, object_of(*vocab, "model.vocab"));
  model.vocab.reserve(tokens.size());
  for (const auto token : tokens) {
    MSTAR_TRY_ASSIGN(const std::int32_t id, id_of(token.value, "model.vocab"));
    model.vocab.emplace_back(token.key, id);
  }
  MSTAR_TRY_ASSIGN(const dom::array merges, array_at(o, "merges", kWhere));
  model.merges.reserve(merges.size());
  for (const dom::element merge : merges) {
    std::string_view line;
    if (merge.get_string().get(line) == simdjson::SUCCESS && line.starts_with("#version")) continue;
    MSTAR_TRY_ASSIGN(const auto pair, read_merge(merge));
    model.merges.push_back(pair);
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> read_tokenizer_json(std::string_view json) {
  if (json.size() > kMaxJsonBytes) return fault("file", "is longer than 256 MiB");
  auto parser = std::make_shared<dom::parser>();
  dom::element root;
  if (const auto error = parser->parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return fault("file", simdjson::error_message(error));
  }
  TokenizerSpec spec;
  spec.document = parser;
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(root, "file"));
  if (const auto e = member(o, "normalizer")) MSTAR_TRY(read_normalizer(*e, 0, spec));
  if (const auto e = member(o, "pre_tokenizer")) MSTAR_TRY(read_pre_tokenizer(*e, 0, spec));
  if (spec.pre_tokenizer.empty() || spec.pre_tokenizer.back().kind != PreTokenStepSpec::Kind::byte_level) {
    return unsupported("pre_tokenizer", "a tokenizer without ByteLevel");
  }
  const auto decoder = member(o, "decoder");
  if (!decoder) return unsupported("decoder", "null");
  MSTAR_TRY(read_decoder(*decoder, 0));
  if (const auto e = member(o, "post_processor")) MSTAR_TRY(read_post_processor(*e, 0, spec));
  if (const auto e = member(o, "added_tokens")) MSTAR_TRY(read_added_tokens(*e, spec));
  const auto model = member(o, "model");
  if (!model) return fault("file", "lacks model");
  MSTAR_TRY(read_model(*model, spec.model));
  return spec;
}

}  // namespace mstar::text
