// Append-only JSON writing for answers, and the bounded reading of JSON from outside.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "mstar/base/params.h"
#include "mstar/base/result.h"

namespace mstar::server {

// A quoted JSON string. Bytes that are not UTF-8 become U+FFFD, so the result is always valid.
void append_json_string(std::string& out, std::string_view text);
// The same without its quotes. Cost: about a nanosecond a byte.
void append_json_text(std::string& out, std::string_view text);
void append_json_string_or_null(std::string& out, std::string_view text);
// The shortest text that reads back as the same double; null when it is not finite.
void append_json_number(std::string& out, double value);
// {"name":value,...}
void append_json_params(std::string& out, const Params& params);

bool is_utf8(std::string_view text);

// invalid_request when the text has more than kMaxJsonDepth levels, or about kMaxJsonValues values: its tree would take
// many times the memory of the text; or an object of more than `max_members`. To be asked before any text from outside
// is parsed. One pass over the text.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 18;
Status check_json_bounds(std::string_view text, std::string_view what, std::size_t max_members = kMaxJsonValues);

// The member of the outermost object (as spelt; empty outside of one) that holds an integer which neither a signed nor
// an unsigned one of 64 bits can hold, and which a parser would make a float of. `text` is JSON. One pass over the
// text.
std::optional<std::string_view> member_with_large_integer(std::string_view text);

// Parses a JSON object within those bounds into typed values: strings, numbers, booleans, lists of strings
// and lists of numbers. Any other nested value is kept as its compact JSON text; null members count as missing. `what`
// names the object in error messages.
Result<Params> params_from_json(std::string_view text, std::string_view what);

}  // namespace mstar::server
