// Strings and numbers as Python prints and takes them apart. Texts are valid UTF-8; positions count characters.
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/jinja/value.h"

namespace mstar::jinja {

std::size_t num_characters(std::string_view text);
// Where the character `index` starts, or the size when there are fewer.
std::size_t byte_of_character(std::string_view text, std::size_t index);
std::u32string characters(std::string_view text);
std::string from_characters(std::u32string_view text);

std::string real_repr(double value);
// Whether the value prints without an address in memory: no function, macro or generator is in it, nor
// a range whose bounds are not known.
bool has_text(const Value& value);
// str() and repr() of what has_text. Containers print as Python's.
std::string to_text(const Value& value);
std::string repr(const Value& value);
// json.dumps as transformers' tojson sets it up. `indent` < 0: one line. invalid_request for what JSON can't hold.
struct JsonStyle {
  int indent = -1;
  std::string indent_text;  // used when indent is set
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii_only = false;
  bool sort_keys = false;
};
Result<std::string> to_json(const Value& value, const JsonStyle& style, std::size_t max_bytes);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
// str.title(): every letter after a character without case.
std::string python_title(std::string_view text);
std::string swap_case(std::string_view text);
bool is_lower(std::string_view text);
bool is_upper(std::string_view text);
// Whether the text is not empty and all of it is such: alpha, digit, decimal, numeric, alnum, space, title is not here.
enum class CharClass : std::uint8_t { alpha, digit, decimal, numeric, alnum, space };
bool all_of_class(std::string_view text, CharClass which);

// `chars` null: white space.
enum class Side : std::uint8_t { both, left, right };
std::string_view strip(std::string_view text, Side side, const std::string* chars);
std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t max_splits);
std::vector<std::string> split_right(std::string_view text, const std::string* separator, std::int64_t max_splits);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
// At most `count` times, or everywhere when that is negative; nullopt when the answer would exceed max_bytes.
std::optional<std::string> replace(std::string_view text, std::string_view from, std::string_view to,
                                   std::int64_t count, std::size_t max_bytes);
// int() and float() of a text.
std::optional<std::int64_t> parse_int(std::string_view text, int base);
std::optional<double> parse_real(std::string_view text);

// One field of str.format() or of "%": see Python's "Format Specification Mini-Language".
struct FieldSpec {
  char32_t fill = ' ';
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  std::int64_t width = 0;
  char grouping = '\0';
  std::int64_t precision = -1;
  char type = '\0';
};
Result<std::string> format_field(const Value& value, const FieldSpec& spec);
// "%s and %d" % values
Result<std::string> format_percent(std::string_view text, const Value& values, std::size_t max_bytes);
Result<std::string> format_braces(std::string_view text, const std::vector<Value>& positional,
                                  const std::vector<std::pair<std::string, Value>>& named, std::size_t max_bytes);

}  // namespace mstar::jinja
