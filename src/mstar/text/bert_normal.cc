#include "mstar/text/bert_normal.h"

#include <unicode/uchar.h>

#include "mstar/text/normalizer.h"
#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

template <class Take>
std::string rewritten(std::string_view text, Take take) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    take(step.code_point, text.substr(0, step.length_bytes), out);
    text.remove_prefix(step.length_bytes);
  }
  return out;
}

// Whether c is of one of the categories of `mask`, as the `tokenizers` package knows them: by Unicode 8, what came
// later and what is not assigned are of none.
bool is_of(char32_t c, std::uint32_t mask) {
  constexpr std::uint8_t kKnownVersion = 8;
  const auto code_point = static_cast<UChar32>(c);
  if ((U_GET_GC_MASK(code_point) & mask) == 0) return false;
  UVersionInfo age{};
  u_charAge(code_point, age);
  return age[0] <= kKnownVersion;
}

bool is_control(char32_t c) {
  constexpr std::uint32_t kOther = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK;
  return c != '\t' && c != '\n' && c != '\r' && is_of(c, kOther);
}

// The last range but two begins where the `tokenizers` package has it, not where the block does (U+2B820).
bool is_chinese(char32_t c) {
  constexpr char32_t kRanges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                     {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (const auto& range : kRanges) {
    if (c >= range[0] && c <= range[1]) return true;
  }
  return false;
}

}  // namespace

std::string strip_accents(std::string_view text) {
  return rewritten(text, [](char32_t c, std::string_view bytes, std::string& out) {
    if (!is_of(c, U_GC_MN_MASK)) out.append(bytes);
  });
}

std::string bert_normal(const NormalStepSpec& spec, std::string_view text) {
  std::string out(text);
  if (spec.clean_text) {
    out = rewritten(out, [](char32_t c, std::string_view bytes, std::string& to) {
      if (c == 0 || c == 0xFFFD || is_control(c)) return;
      if (is_unicode_space(c)) {
        to.push_back(' ');
      } else {
        to.append(bytes);
      }
    });
  }
  if (spec.space_chinese) {
    out = rewritten(out, [](char32_t c, std::string_view bytes, std::string& to) {
      if (is_chinese(c)) {
        to.append(" ").append(bytes).append(" ");
      } else {
        to.append(bytes);
      }
    });
  }
  if (spec.drop_accents) out = strip_accents(unicode_form(NormalStepSpec::Kind::nfd, std::move(out)));
  if (spec.lower) out = lower_case(out);
  return out;
}

}  // namespace mstar::text
