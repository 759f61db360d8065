#include "mstar/text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "mstar/text/utf8.h"

namespace mstar::text {
namespace {

constexpr std::uint32_t kMatchLimit = 4'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;

struct Release {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;

PCRE2_SPTR code_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct SplitRegex::Code {
  Owned<pcre2_code> code;
  Owned<pcre2_match_context> context;
  bool jit = false;

  // The first match at or after `from`: 1, or PCRE2_ERROR_NOMATCH, or another error.
  int find(std::string_view text, std::size_t from, pcre2_match_data* match) const {
    if (jit) {
      const int rc = pcre2_jit_match(code.get(), code_units(text), text.size(), from, 0, match, context.get());
      if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(code.get(), code_units(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                       context.get());
  }
};

SplitRegex::SplitRegex(std::unique_ptr<const Code> code) : code_(std::move(code)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

Result<SplitRegex> SplitRegex::build(const std::string& translated, std::string_view original) {
  Owned<pcre2_compile_context> compile_context(pcre2_compile_context_create(nullptr));
  auto code = std::make_unique<Code>();
  code->context.reset(pcre2_match_context_create(nullptr));
  if (!compile_context || !code->context) return exhausted("no memory for a split pattern");
  pcre2_set_newline(compile_context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_match_limit(code->context.get(), kMatchLimit);
  pcre2_set_heap_limit(code->context.get(), kHeapLimitKib);

  int error = 0;
  PCRE2_SIZE where = 0;
  code->code.reset(pcre2_compile(code_units(translated), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where,
                                 compile_context.get()));
  if (!code->code) {
    PCRE2_UCHAR reason[128] = {};
    pcre2_get_error_message(error, reason, sizeof reason);
    std::string message = "split pattern ";
    message.append(original).append(": ").append(reinterpret_cast<const char*>(reason));
    return bad_model(std::move(message));
  }
  code->jit = pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return SplitRegex(std::move(code));
}

Result<SplitRegex> SplitRegex::compile(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) return bad_model("a split pattern is not UTF-8");
  MSTAR_TRY_ASSIGN(const std::string translated, translate_pattern(pattern));
  return build(translated, pattern);
}

Result<SplitRegex> SplitRegex::literal(std::string_view text) {
  if (!is_valid_utf8(text)) return bad_model("a split pattern is not UTF-8");
  if (text.size() > 1 << 14) return bad_model("a split pattern is longer than 16384 bytes");
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        byte >= 0x80 || byte <= ' ' || (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
    if (!plain) escaped.push_back('\\');
    escaped.push_back(c);
  }
  return build(escaped, text);
}

void SplitRegex::split(std::string_view text, std::vector<SplitRange>& out) const {
  out.clear();
  if (text.empty()) return;
  const Owned<pcre2_match_data> match(pcre2_match_data_create(1, nullptr));
  std::size_t covered = 0, from = 0;
  bool had_match = false;
  while (match && from <= text.size()) {
    if (code_->find(text, from, match.get()) < 0) break;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    const std::size_t begin = bounds[0], end = bounds[1];
    // \K is refused and lookbehind can't move a match back, but a range that goes back would never end.
    if (begin < covered || end < begin) break;
    if (begin == end && had_match && end == covered) {
      if (from >= text.size()) break;
      from += utf8_step(text.substr(from)).length_bytes;
      continue;
    }
    if (covered != begin) out.push_back({covered, begin, false});
    out.push_back({begin, end, true});
    covered = from = end;
    had_match = true;
  }
  if (covered != text.size()) out.push_back({covered, text.size(), false});
}

}  // namespace mstar::text
