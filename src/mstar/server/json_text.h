// Append-only JSON writing for answers, and the bounded reading of JSON from outside.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "mstar/base/params.h"
#include "mstar/base/result.h"

namespace mstar::server {

// A quoted JSON string. Bytes that are not UTF-8 become U+FFFD, so the result is always valid.
void append_json_string(std::string& out, std::string_view text);
void append_json_string_or_null(std::string& out, std::string_view text);
// The shortest text that reads back as the same double; null when it is not finite.
void append_json_number(std::string& out, double value);
// {"name":value,...}
void append_json_params(std::string& out, const Params& params);

bool is_utf8(std::string_view text);

// Parses a JSON object of at most kMaxJsonDepth levels into typed values: strings, numbers, booleans, lists of strings
// and lists of numbers. Any other nested value is kept as its compact JSON text; null members count as missing. `what`
// names the object in error messages.
inline constexpr int kMaxJsonDepth = 64;
Result<Params> params_from_json(std::string_view text, std::string_view what);

}  // namespace mstar::server
