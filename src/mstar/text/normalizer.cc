#include "mstar/text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "mstar/text/bert_normal.h"
#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

using Kind = NormalStepSpec::Kind;

const icu::Normalizer2* form_of(Kind kind, UErrorCode& error) {
  switch (kind) {
    case Kind::nfc:
      return icu::Normalizer2::getNFCInstance(error);
    case Kind::nfd:
      return icu::Normalizer2::getNFDInstance(error);
    case Kind::nfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    default:
      return icu::Normalizer2::getNFKDInstance(error);
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

std::string unicode_form(NormalStepSpec::Kind kind, std::string text) {
  // ASCII is its own form in all four.
  if (is_ascii(text)) return text;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = form_of(kind, error);
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  if (U_SUCCESS(error)) {
    form->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, error);
  }
  return U_SUCCESS(error) ? out : text;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.code_point == 0x130) {
      out.append("i\xCC\x87");  // the only character whose lower case is two
    } else {
      append_utf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(step.code_point))), out);
    }
    text.remove_prefix(step.length_bytes);
  }
  return out;
}

namespace {

std::string replace_all(const SplitRegex& pattern, std::string_view text, std::string_view content) {
  std::vector<SplitRange> ranges;
  pattern.split(text, ranges);
  std::string out;
  for (const SplitRange& range : ranges) {
    out.append(range.is_match ? content : text.substr(range.begin, range.end - range.begin));
  }
  return out;
}

std::string strip(std::string_view text, bool left, bool right) {
  std::size_t begin = 0, end = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    const std::size_t next = at + step.length_bytes;
    if (!is_unicode_space(step.code_point)) {
      if (!inside) begin = at;
      inside = true;
      end = next;
    }
    at = next;
  }
  if (!inside) return left || right ? std::string() : std::string(text);
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

Result<Normalizer> Normalizer::compile(const std::vector<NormalStepSpec>& steps) {
  Normalizer out;
  for (const NormalStepSpec& spec : steps) {
    Step step{spec.kind, {}, {}, std::string(spec.content), spec};
    step.spec.content = step.spec.char_map = step.spec.pattern.text = {};
    if (spec.kind == Kind::sentencepiece) {
      MSTAR_TRY_ASSIGN(SentencePieceNormal normal, SentencePieceNormal::compile(spec));
      step.sentencepiece.push_back(std::move(normal));
    }
    if (spec.kind == Kind::replace) {
      MSTAR_TRY_ASSIGN(SplitRegex pattern, spec.pattern.is_regex ? SplitRegex::compile(spec.pattern.text)
                                                                 : SplitRegex::literal(spec.pattern.text));
      step.pattern.push_back(std::move(pattern));
    }
    out.steps_.push_back(std::move(step));
  }
  return out;
}

std::string Normalizer::apply_step(const Step& step, std::string text, bool prefix_allowed) {
  switch (step.kind) {
    case Kind::lowercase:
      return lower_case(text);
    case Kind::replace:
      return replace_all(step.pattern.front(), text, step.content);
    case Kind::prepend:
      return text.empty() ? text : step.content + text;
    case Kind::strip:
      return strip(text, step.spec.strip_left, step.spec.strip_right);
    case Kind::strip_accents:
      return strip_accents(text);
    case Kind::bert:
      return bert_normal(step.spec, text);
    case Kind::sentencepiece:
      return step.sentencepiece.front().apply(text, prefix_allowed);
    default:
      return unicode_form(step.kind, std::move(text));
  }
}

std::string Normalizer::apply(std::string_view text, bool prefix_allowed, bool at_start) const {
  std::string out(text);
  for (const Step& step : steps_)
    if (at_start || step.kind != Kind::prepend) out = apply_step(step, std::move(out), prefix_allowed && at_start);
  return out;
}

}  // namespace mstar::text
