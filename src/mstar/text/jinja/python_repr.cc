// str(), repr() and json.dumps().
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "mstar/text/jinja/python_text.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  constexpr std::uint32_t kHidden = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK | U_GC_CN_MASK |
                                    U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

void append_hex(char32_t c, int digits, std::string& out) {
  for (int i = digits - 1; i >= 0; --i) out.push_back("0123456789abcdef"[(c >> (4 * i)) & 15]);
}

std::string string_repr(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const char32_t c = step.code_point;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(text[0]);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (is_printable(c)) {
      out.append(text.substr(0, step.length_bytes));
    } else {
      const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      out.append(digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U");
      append_hex(c, digits, out);
    }
    text.remove_prefix(step.length_bytes);
  }
  out.push_back(quote);
  return out;
}

void append_items(const std::vector<Value>& items, std::string& out) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out.append(", ");
    first = false;
    out.append(repr(item));
  }
}

// Only with this step do the numbers tell what the range was made of.
bool shows_its_bounds(const std::vector<Value>& items) {
  return items.size() > 1 && items[1].as_int() - items[0].as_int() == 1;
}

std::string range_repr(const std::vector<Value>& items) {
  if (!shows_its_bounds(items)) return "<range object>";
  return "range(" + std::to_string(items.front().as_int()) + ", " + std::to_string(items.back().as_int() + 1) + ")";
}

std::string dict_repr(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.entries()) {
    if (out.size() > 1) out.append(", ");
    out.append(repr(key)).append(": ").append(repr(value));
  }
  return out + "}";
}

void append_json_string(std::string_view text, bool ascii_only, std::string& out) {
  out.push_back('"');
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const char32_t c = step.code_point;
    constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    const std::size_t at = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
    if (at != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kTo[at]);
    } else if (c < 0x20 || (ascii_only && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
      out.append("\\u");
      append_hex(c, 4, out);
    } else if (ascii_only && c >= 0x10000) {
      out.append("\\u");
      append_hex(0xD800 + ((c - 0x10000) >> 10), 4, out);
      out.append("\\u");
      append_hex(0xDC00 + ((c - 0x10000) & 0x3FF), 4, out);
    } else {
      out.append(text.substr(0, step.length_bytes));
    }
    text.remove_prefix(step.length_bytes);
  }
  out.push_back('"');
}

std::string json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return real_repr(value);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::size_t max_bytes) : style_(style), max_bytes_(max_bytes) {}
  Status write(const Value& value) {
    if (out_.size() > max_bytes_) return exhausted("JSON is longer than the template may build");
    switch (value.kind()) {
      case Kind::none:
        out_.append("null");
        return {};
      case Kind::boolean:
        out_.append(value.as_bool() ? "true" : "false");
        return {};
      case Kind::integer:
        out_.append(std::to_string(value.as_int()));
        return {};
      case Kind::large_integer:
        out_.append(std::to_string(value.as_large()));
        return {};
      case Kind::real:
        out_.append(json_real(value.as_real()));
        return {};
      case Kind::string:
        append_json_string(value.text(), style_.ascii_only, out_);
        return {};
      case Kind::list:
      case Kind::tuple:
        return list(value.items());
      case Kind::dict:
        return dict(value.entries());
      default:
        return bad_model("Object of type " + std::string(type_name(value)) + " is not JSON serializable");
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void new_line() {
    if (style_.indent < 0) return;
    out_.push_back('\n');
    for (int i = 0; i < level_; ++i) out_.append(style_.indent_text);
  }
  void next_item(bool first) {
    if (!first) out_.append(style_.item_separator);
    new_line();
  }
  Status list(const std::vector<Value>& items) {
    if (items.empty()) {
      out_.append("[]");
      return {};
    }
    out_.push_back('[');
    ++level_;
    bool first = true;
    for (const Value& item : items) {
      next_item(first);
      first = false;
      MSTAR_TRY(write(item));
    }
    --level_;
    new_line();
    out_.push_back(']');
    return {};
  }
  Result<std::string> key_text(const Value& key) const {
    switch (key.kind()) {
      case Kind::string:
        return key.text();
      case Kind::none:
        return std::string("null");
      case Kind::boolean:
        return std::string(key.as_bool() ? "true" : "false");
      case Kind::integer:
        return std::to_string(key.as_int());
      case Kind::large_integer:
        return std::to_string(key.as_large());
      case Kind::real:
        return json_real(key.as_real());
      default:
        return bad_model("keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
    }
  }
  Status dict(const Dict& entries) {
    if (entries.empty()) {
      out_.append("{}");
      return {};
    }
    std::vector<const Dict::Entry*> order;
    for (const Dict::Entry& entry : entries.entries()) order.push_back(&entry);
    if (style_.sort_keys) {
      bool comparable = true;
      std::stable_sort(order.begin(), order.end(), [&](const Dict::Entry* a, const Dict::Entry* b) {
        const auto before = less(a->first, b->first);
        comparable = comparable && before.has_value();
        return before.value_or(false);
      });
      if (!comparable) return bad_model("keys of different types can't be sorted");
    }
    out_.push_back('{');
    ++level_;
    bool first = true;
    for (const Dict::Entry* entry : order) {
      next_item(first);
      first = false;
      MSTAR_TRY_ASSIGN(const std::string key, key_text(entry->first));
      append_json_string(key, style_.ascii_only, out_);
      out_.append(style_.key_separator);
      MSTAR_TRY(write(entry->second));
    }
    --level_;
    new_line();
    out_.push_back('}');
    return {};
  }

  const JsonStyle& style_;
  std::size_t max_bytes_;
  int level_ = 0;
  std::string out_;
};

}  // namespace

std::string real_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out.push_back('-');
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits.append(text.substr(2, e - 2));
  int exponent = 0;
  const std::string_view power = text.substr(e + 2);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (text[e + 1] == '-') exponent = -exponent;
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out.push_back(digits[0]);
    if (num_digits > 1) out.append(".").append(digits.substr(1));
    out.append(exponent < 0 ? "e-" : "e+");
    const std::string size = std::to_string(std::abs(exponent));
    return out + (size.size() < 2 ? "0" + size : size);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (num_digits <= exponent + 1) {
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - num_digits), '0') + ".0";
  }
  const auto whole = static_cast<std::size_t>(exponent + 1);
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string repr(const Value& value) {
  std::string out;
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::string:
      return string_repr(value.text());
    case Kind::list:
      out = "[";
      append_items(value.items(), out);
      return out + "]";
    case Kind::tuple:
      out = "(";
      append_items(value.items(), out);
      return out + (value.items().size() == 1 ? ",)" : ")");
    case Kind::range:
      return range_repr(value.items());
    case Kind::dict_keys:
    case Kind::dict_values:
    case Kind::dict_items:
      out = std::string(type_name(value)) + "([";
      append_items(value.items(), out);
      return out + "])";
    case Kind::dict:
      return dict_repr(value.entries());
    default:
      return to_text(value);
  }
}

std::string to_text(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return {};
    case Kind::none:
      return "None";
    case Kind::boolean:
      return value.as_bool() ? "True" : "False";
    case Kind::integer:
      return std::to_string(value.as_int());
    case Kind::large_integer:
      return std::to_string(value.as_large());
    case Kind::real:
      return real_repr(value.as_real());
    case Kind::string:
      return value.text();
    case Kind::iterator:
      return "<generator object>";
    case Kind::object:
      return "<object>";
    default:
      return repr(value);
  }
}

bool has_text(const Value& value) {
  if (value.is(Kind::iterator) || value.is(Kind::object)) return false;
  if (value.is(Kind::range)) return shows_its_bounds(value.items());
  if (value.is_sequence()) return std::all_of(value.items().begin(), value.items().end(), has_text);
  if (!value.is(Kind::dict)) return true;
  const auto& entries = value.entries().entries();
  return std::all_of(entries.begin(), entries.end(), [](const Dict::Entry& entry) { return has_text(entry.second); });
}

Result<std::string> to_json(const Value& value, const JsonStyle& style, std::size_t max_bytes) {
  JsonWriter writer(style, max_bytes);
  MSTAR_TRY(writer.write(value));
  return writer.take();
}

}  // namespace mstar::jinja
