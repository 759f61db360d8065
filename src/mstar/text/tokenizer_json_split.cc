// The pre-tokenizer and the decoder of a tokenizer.json.
#include "mstar/text/json_fields.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {
namespace {

constexpr std::string_view kBertPunctuation = R"([!-/:-@\[-`{-~\p{P}])";

Result<SplitBehavior> read_behavior(const dom::object& o, std::string_view where) {
  MSTAR_TRY_ASSIGN(const std::string_view name, string_at(o, "behavior", where));
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return unsupported(where, "behavior " + std::string(name));
}

Result<PrependScheme> read_prepend(const dom::object& o, std::string_view where) {
  if (!member(o, "prepend_scheme")) {
    MSTAR_TRY_ASSIGN(const bool add, bool_at(o, "add_prefix_space", true, where));
    return add ? PrependScheme::always : PrependScheme::never;
  }
  MSTAR_TRY_ASSIGN(const std::string_view name, string_at(o, "prepend_scheme", where));
  if (name == "always") return PrependScheme::always;
  if (name == "first") return PrependScheme::first;
  if (name == "never") return PrependScheme::never;
  return unsupported(where, "prepend_scheme " + std::string(name));
}

Status read_metaspace(const dom::object& o, PreTokenStepSpec& step) {
  constexpr std::string_view kWhere = "pre_tokenizer";
  step.kind = PreTokenStepSpec::Kind::metaspace;
  MSTAR_TRY_ASSIGN(step.replacement, string_at(o, "replacement", kWhere));
  MSTAR_TRY_ASSIGN(step.prepend, read_prepend(o, kWhere));
  MSTAR_TRY_ASSIGN(step.split, bool_at(o, "split", true, kWhere));
  if (step.replacement.empty()) return fault(kWhere, "replacement must not be empty");
  return {};
}

}  // namespace

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
  } else if (type == "Metaspace") {
    MSTAR_TRY(read_metaspace(o, step));
  } else if (type == "BertPreTokenizer") {
    // White space goes, then each punctuation mark stands alone.
    step.pattern = {"\\s+", true};
    step.behavior = SplitBehavior::removed;
    spec.pre_tokenizer.push_back(step);
    step.pattern = {kBertPunctuation, true};
    step.behavior = SplitBehavior::isolated;
  } else if (type == "Whitespace") {
    step.pattern = {"\\w+|[^\\w\\s]+", true};
    step.behavior = SplitBehavior::removed;
    step.invert = true;
  } else if (type == "WhitespaceSplit") {
    step.pattern = {"\\s", true};
    step.behavior = SplitBehavior::removed;
  } else if (type == "Punctuation") {
    step.pattern = {kBertPunctuation, true};
    if (member(o, "behavior")) {
      MSTAR_TRY_ASSIGN(step.behavior, read_behavior(o, kWhere));
    }
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

namespace {

Status read_decoder_step(const dom::object& o, std::string_view type, DecoderSpec& out) {
  constexpr std::string_view kWhere = "decoder";
  if (type == "ByteLevel") {
    out.kind = DecoderSpec::Kind::byte_level;
  } else if (type == "ByteFallback") {
    out.byte_fallback = true;
  } else if (type == "Fuse") {
    // Tokens are always joined here.
  } else if (type == "Replace") {
    MSTAR_TRY_ASSIGN(const PatternSpec pattern, read_pattern(o, kWhere));
    MSTAR_TRY_ASSIGN(const std::string_view content, string_at(o, "content", kWhere));
    if (pattern.is_regex) return unsupported(kWhere, "Replace by a Regex");
    if (!pattern.text.empty()) out.replacements.emplace_back(pattern.text, content);
  } else if (type == "Strip") {
    MSTAR_TRY_ASSIGN(const std::string_view content, string_at(o, "content", kWhere));
    MSTAR_TRY_ASSIGN(out.strip_spaces, count_at(o, "start", 0, kWhere));
    MSTAR_TRY_ASSIGN(const std::int64_t stop, count_at(o, "stop", 0, kWhere));
    if (content != " " || stop != 0) return unsupported(kWhere, "Strip of other than spaces at the start");
  } else if (type == "Metaspace") {
    MSTAR_TRY_ASSIGN(out.metaspace, string_at(o, "replacement", kWhere));
    MSTAR_TRY_ASSIGN(const PrependScheme scheme, read_prepend(o, kWhere));
    out.drop_first_space = scheme != PrependScheme::never;
  } else if (type == "WordPiece") {
    out.kind = DecoderSpec::Kind::word_piece;
    MSTAR_TRY_ASSIGN(out.continuing_prefix, string_at(o, "prefix", kWhere));
    MSTAR_TRY_ASSIGN(out.clean_up, bool_at(o, "cleanup", true, kWhere));
  } else {
    return unsupported(kWhere, type);
  }
  return {};
}

}  // namespace

Status read_decoder(const dom::element& e, int depth, TokenizerSpec& spec) {
  constexpr std::string_view kWhere = "decoder";
  MSTAR_TRY_ASSIGN(const dom::object o, object_of(e, kWhere));
  MSTAR_TRY_ASSIGN(const std::string_view type, string_at(o, "type", kWhere));
  if (type != "Sequence") return read_decoder_step(o, type, spec.decoder);
  if (depth >= kMaxNesting) return fault(kWhere, "is nested too deeply");
  MSTAR_TRY_ASSIGN(const dom::array steps, array_at(o, "decoders", kWhere));
  for (const dom::element step : steps) MSTAR_TRY(read_decoder(step, depth + 1, spec));
  return {};
}

}  // namespace mstar::text
