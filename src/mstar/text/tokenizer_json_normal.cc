// The normalizer of a tokenizer.json.
#include "mstar/text/json_fields.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {
namespace {

Result<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return fault("normalizer.precompiled_charsmap", "is no base64");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out.push_back(static_cast<char>(static_cast<std::uint8_t>(bits >> num_bits)));
    }
  }
  return out;
}

}  // namespace

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
  } else if (type == "StripAccents") {
    step.kind = Kind::strip_accents;
  } else if (type == "BertNormalizer") {
    step.kind = Kind::bert;
    MSTAR_TRY_ASSIGN(step.clean_text, bool_at(o, "clean_text", true, kWhere));
    MSTAR_TRY_ASSIGN(step.space_chinese, bool_at(o, "handle_chinese_chars", true, kWhere));
    MSTAR_TRY_ASSIGN(step.lower, bool_at(o, "lowercase", true, kWhere));
    MSTAR_TRY_ASSIGN(step.drop_accents, bool_at(o, "strip_accents", step.lower, kWhere));
  } else if (type == "Precompiled") {
    step.kind = Kind::sentencepiece;
    MSTAR_TRY_ASSIGN(const std::string_view encoded, string_at(o, "precompiled_charsmap", kWhere));
    MSTAR_TRY_ASSIGN(std::string bytes, decode_base64(encoded));
    step.char_map = keep_text(spec, std::move(bytes));
  } else {
    return unsupported(kWhere, type);
  }
  spec.normalizer.push_back(step);
  return {};
}

}  // namespace mstar::text
