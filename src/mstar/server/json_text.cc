#include "mstar/server/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace mstar::server {
namespace {

using nlohmann::json;

// Length of the UTF-8 sequence at `i`, or 0 if it is malformed (overlong, surrogate, beyond U+10FFFF, truncated).
std::size_t sequence_length(std::string_view text, std::size_t i) {
  const auto at = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = at(i);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || i + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k)
    if ((at(i + k) & 0xC0) != 0x80) return 0;
  const unsigned char second = at(i + 1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F))
    return 0;
  return length;
}

template <class Pred>
bool all(const json& list, Pred pred) {
  for (const json& each : list)
    if (!pred(each)) return false;
  return true;
}

std::string compact(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

ParamValue value_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return value.get<double>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && all(value, [](const json& v) { return v.is_string(); }))
    return value.get<std::vector<std::string>>();
  if (value.is_array() && all(value, [](const json& v) { return v.is_number(); }))
    return value.get<std::vector<double>>();
  return compact(value);
}

void append_value(std::string& out, const ParamValue& value) {
  const auto list = [&out](const auto& items, auto append) {
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i) out += ',';
      append(out, items[i]);
    }
    out += ']';
  };
  if (const auto* b = std::get_if<bool>(&value)) {
    out += *b ? "true" : "false";
  } else if (const auto* i = std::get_if<std::int64_t>(&value)) {
    out += std::to_string(*i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    append_json_number(out, *d);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    append_json_string(out, *s);
  } else if (const auto* strings = std::get_if<std::vector<std::string>>(&value)) {
    list(*strings, append_json_string);
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
    list(*numbers, append_json_number);
  }
}

void append_escape(std::string& out, char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      break;
    case '\\':
      out += "\\\\";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\t':
      out += "\\t";
      break;
    default:
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[c & 15];
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

void append_json_text(std::string& out, std::string_view text) {
  std::size_t plain = 0;  // where the bytes begin that go out as they are
  const auto flush = [&](std::size_t end) { out.append(text.data() + plain, end - plain); };
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      const std::size_t length = sequence_length(text, i);
      if (length == 0) {
        flush(i);
        out += "\xEF\xBF\xBD";
        plain = i + 1;
      }
      i += length ? length : 1;
      continue;
    }
    if (byte < 0x20 || byte == 0x7F || byte == '"' || byte == '\\') {
      flush(i);
      append_escape(out, text[i]);
      plain = i + 1;
    }
    ++i;
  }
  flush(text.size());
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_text(out, text);
  out += '"';
}

void append_json_string_or_null(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  if (error == std::errc()) out.append(digits, end);
}

void append_json_params(std::string& out, const Params& params) {
  out += '{';
  bool first = true;
  for (const auto& [name, value] : params.values()) {
    if (!first) out += ',';
    first = false;
    append_json_string(out, name);
    out += ':';
    append_value(out, value);
  }
  out += '}';
}

// The parser itself does not recurse, but what walks its tree later does; and a value of two bytes of text takes up to
// a hundred bytes of tree.
Status check_json_bounds(std::string_view text, std::string_view what, std::size_t max_members) {
  int depth = 0;
  std::size_t num_values = 0;
  std::size_t num_members[kMaxJsonDepth + 1] = {};  // of the object that is open at each depth
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++num_values;
      if (++depth > kMaxJsonDepth) return invalid_request(std::string(what) + " is nested too deeply");
      num_members[depth < 0 ? 0 : depth] = 0;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':') {
      if (++num_members[depth < 0 ? 0 : depth] > max_members)
        return invalid_request(std::string(what) + " holds an object of more than " + std::to_string(max_members) +
                               " members");
    } else if (c == ',') {
      ++num_values;
    }
    if (num_values > kMaxJsonValues)
      return invalid_request(std::string(what) + " holds more than " + std::to_string(kMaxJsonValues) +
                             " values; send numbers in bulk as a file");
  }
  return ok_status();
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Of the number at the start of `text`.
bool is_large_integer(std::string_view text) {
  const bool negative = text.front() == '-';
  const char* const end = text.data() + text.size();
  std::int64_t low = 0;
  std::uint64_t high = 0;
  const auto read = negative ? std::from_chars(text.data(), end, low) : std::from_chars(text.data(), end, high);
  return read.ec == std::errc::result_out_of_range;
}

}  // namespace

std::optional<std::string_view> member_with_large_integer(std::string_view text) {
  constexpr std::size_t kMostSafeDigits = 18;
  std::string_view name, member;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const std::size_t begin = i + 1;
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      name = text.substr(begin, std::min(i, text.size()) - begin);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':') {
      if (depth == 1) member = name;
    } else if (c == '-' || is_digit(c)) {
      const std::size_t begin = i;
      while (i + 1 < text.size() && is_digit(text[i + 1])) ++i;
      const std::size_t num_digits = i - begin;
      const char next = i + 1 < text.size() ? text[i + 1] : ' ';
      if (next == '.' || next == 'e' || next == 'E') {
        const std::size_t after = text.find_first_not_of("0123456789.eE+-", i + 1);
        i = (after == std::string_view::npos ? text.size() : after) - 1;
      } else if (num_digits >= kMostSafeDigits && is_large_integer(text.substr(begin, num_digits + 1))) {
        return member;
      }
    }
  }
  return std::nullopt;
}

Result<Params> params_from_json(std::string_view text, std::string_view what) {
  MSTAR_TRY(check_json_bounds(text, what));
  const json parsed = json::parse(text.begin(), text.end(), nullptr, false);
  if (parsed.is_discarded()) return invalid_request(std::string(what) + " is not valid JSON");
  if (!parsed.is_object()) return invalid_request(std::string(what) + " must be a JSON object");
  if (const auto member = member_with_large_integer(text))
    return std::move(invalid_request("'" + std::string(*member) + "' holds an integer beyond 64 bits"))
        .with_field(std::string(*member));
  Params out;
  for (const auto& [name, value] : parsed.items())
    if (!value.is_null()) out.set(name, value_of(value));
  return out;
}

}  // namespace mstar::server
