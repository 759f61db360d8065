// UTF-8 as it comes from outside: every ill-formed part becomes one U+FFFD per "maximal subpart" (The Unicode Standard,
// section 3.9), as Python's errors="replace" and Rust's from_utf8_lossy do. Thread: any; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mstar {

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : std::uint8_t {
  valid,       // one whole character
  invalid,     // an ill-formed part that no later byte can mend
  incomplete,  // the text ends inside a character that is well-formed so far
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::valid;
  std::uint8_t length_bytes = 1;
  char32_t code_point = 0;  // meaningful when valid
};

// The first character or ill-formed part of `text`, which must not be empty. O(1).
Utf8Step utf8_step(std::string_view text);

// Appends `bytes` to `out`, ill-formed parts replaced. Returns how many bytes at the end (0 to 3) were not taken
// because they are the start of a character. O(n).
std::size_t append_complete_utf8(std::string_view bytes, std::string& out);

bool is_valid_utf8(std::string_view text);
// `text` with every ill-formed part, an incomplete end included, replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
// `code_point` must be a scalar value.
void append_utf8(char32_t code_point, std::string& out);

// White_Space of Unicode.
bool is_unicode_space(char32_t code_point);
// What Python's str.isspace() takes: White_Space and U+001C to U+001F.
bool is_python_space(char32_t code_point);
// `text` without what Python's str.strip() takes off its ends.
std::string_view strip_spaces(std::string_view text);

}  // namespace mstar
