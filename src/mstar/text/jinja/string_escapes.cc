#include "mstar/text/jinja/string_escapes.h"

#include <algorithm>

#include "mstar/text/jinja/lexer.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
int hex_value(char c) { return is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10; }

// The backslash stays. What jinja2 makes of a character beyond ASCII after it is an escape whose backslash is gone.
void unknown_escape(std::string_view& in, std::string& out) {
  out.push_back('\\');
  const Utf8Step step = utf8_step(in.substr(1));
  if (step.code_point < 0x80) {
    out.push_back(in[1]);
  } else {
    const int digits = step.code_point < 0x100 ? 2 : step.code_point < 0x10000 ? 4 : 8;
    out.push_back(digits == 2 ? 'x' : digits == 4 ? 'u' : 'U');
    for (int i = digits - 1; i >= 0; --i) out.push_back("0123456789abcdef"[(step.code_point >> (4 * i)) & 15]);
  }
  in.remove_prefix(1 + step.length_bytes);
}

Status hex_escape(std::size_t digits, int line, std::string_view& in, std::string& out) {
  char32_t value = 0;
  for (std::size_t i = 2; i < 2 + digits; ++i) {
    if (i >= in.size() || !is_hex(in[i])) return template_error(line, "a truncated escape in a string");
    value = value * 16 + static_cast<char32_t>(hex_value(in[i]));
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    return template_error(line, "an escape that is no character");
  }
  append_utf8(value, out);
  in.remove_prefix(2 + digits);
  return {};
}

}  // namespace

Status append_unescaped(std::string_view in, int line, std::string& out) {
  while (!in.empty()) {
    const std::size_t slash = std::min(in.find('\\'), in.size());
    out.append(in.substr(0, slash));
    in.remove_prefix(slash);
    if (in.size() < 2) break;
    const char c = in[1];
    constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t at = kFrom.find(c); at != std::string_view::npos) {
      out.push_back(kTo[at]);
      in.remove_prefix(2);
    } else if (c == '\n') {
      in.remove_prefix(2);
    } else if (c >= '0' && c <= '7') {
      std::size_t n = 1;
      char32_t value = 0;
      for (; n < 4 && n < in.size() && in[n] >= '0' && in[n] <= '7'; ++n) value = value * 8 + char32_t(in[n] - '0');
      append_utf8(value, out);
      in.remove_prefix(n);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      MSTAR_TRY(hex_escape(c == 'x' ? 2 : c == 'u' ? 4 : 8, line, in, out));
    } else if (c == 'N') {
      return template_error(line, "\\N{...} is not supported");
    } else {
      unknown_escape(in, out);
    }
  }
  return {};
}

}  // namespace mstar::jinja
