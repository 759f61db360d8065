// Template source to tokens, with jinja2's rules for white space round tags (trim_blocks and lstrip_blocks on, the
// last newline of the source dropped).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::jinja {

enum class TokenKind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  symbol,  // an operator or a bracket
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 1;
  std::string text;  // data, name, string, symbol
  std::int64_t integer = 0;
  double real = 0;
};

// bad_model, with the line, on what jinja2 refuses as well. `source` must be valid UTF-8. The last token is `end`.
Result<std::vector<Token>> tokenize(std::string_view source);

// "template line N: message"
Error template_error(int line, std::string_view message);

}  // namespace mstar::jinja
