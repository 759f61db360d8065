// "%" and str.format().
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "mstar/text/jinja/python_text.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 16;
constexpr std::int64_t kMaxPrecision = 400;

Error type_error(std::string_view what) { return bad_model(std::string(what)); }

std::string c_format(const char* pattern, int precision, double value) {
  const int length = std::snprintf(nullptr, 0, pattern, precision, value);
  std::string out(static_cast<std::size_t>(std::max(length, 0)) + 1, '\0');
  std::snprintf(out.data(), out.size(), pattern, precision, value);
  out.pop_back();
  return out;
}

// Digits of a finite or infinite number without its sign.
std::string real_digits(double value, const FieldSpec& spec) {
  if (!std::isfinite(value)) {
    const bool loud = spec.type >= 'A' && spec.type <= 'Z';
    return std::isnan(value) ? (loud ? "NAN" : "nan") : (loud ? "INF" : "inf");
  }
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  switch (spec.type) {
    case 'e':
      return c_format(spec.alternate ? "%#.*e" : "%.*e", precision, value);
    case 'E':
      return c_format(spec.alternate ? "%#.*E" : "%.*E", precision, value);
    case 'f':
    case 'F':
      return c_format(spec.alternate ? "%#.*f" : "%.*f", precision, value);
    case '%':
      return c_format("%.*f", precision, value * 100) + "%";
    case 'G':
      return c_format(spec.alternate ? "%#.*G" : "%.*G", precision, value);
    case 'g':
    case 'n':
      return c_format(spec.alternate ? "%#.*g" : "%.*g", precision, value);
    default:
      break;
  }
  if (spec.precision < 0) return real_repr(value);
  // As 'g', with one digit after the point at least.
  std::string out = c_format("%.*g", std::max(precision, 1), value);
  if (out.find_first_of(".e") == std::string::npos) {
    // A number whose digits fill the precision is written with an exponent.
    if (static_cast<int>(out.size()) >= std::max(precision, 1)) {
      out = c_format("%.*e", std::max(precision, 1) - 1, value);
      const std::size_t e = out.find('e');
      std::string mantissa = out.substr(0, e);
      if (mantissa.find('.') != std::string::npos) {
        while (mantissa.back() == '0') mantissa.pop_back();
        if (mantissa.back() == '.') mantissa.pop_back();
      }
      return mantissa + out.substr(e);
    }
    out.append(".0");
  }
  return out;
}

std::string integer_digits(std::uint64_t magnitude, const FieldSpec& spec, std::string& prefix) {
  const unsigned base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : (spec.type | 0x20) == 'x' ? 16 : 10;
  std::string out;
  do {
    out.push_back((spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base]);
    magnitude /= base;
  } while (magnitude > 0);
  std::reverse(out.begin(), out.end());
  if (spec.alternate && base != 10) prefix = std::string("0") + spec.type;
  return out;
}

std::string group_digits(const std::string& digits, char separator, std::size_t every) {
  const std::size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out + digits.substr(whole);
}

std::string pad(const std::string& prefix, const std::string& body, const FieldSpec& spec, char default_align) {
  const auto length = static_cast<std::int64_t>(num_characters(prefix) + num_characters(body));
  if (length >= spec.width) return prefix + body;
  const auto missing = static_cast<std::size_t>(spec.width - length);
  const auto fill = [&](std::size_t n) { return from_characters(std::u32string(n, spec.fill)); };
  switch (spec.align == '\0' ? default_align : spec.align) {
    case '<':
      return prefix + body + fill(missing);
    case '^':
      return fill(missing / 2) + prefix + body + fill(missing - missing / 2);
    case '=':
      return prefix + fill(missing) + body;
    default:
      return fill(missing) + prefix + body;
  }
}

Status check_spec(const FieldSpec& spec) {
  if (spec.width > kMaxWidth || spec.precision > kMaxPrecision) return type_error("a format is too wide");
  return {};
}

Result<std::string> format_number(const Value& value, const FieldSpec& spec) {
  std::string prefix, digits;
  bool negative = false;
  constexpr std::string_view kRealTypes = "eEfFgGn%";
  const bool as_real = value.is(Kind::real) ||
                       (spec.type != 'n' && spec.type != '\0' && kRealTypes.find(spec.type) != std::string_view::npos);
  if (as_real) {
    if (spec.type != '\0' && kRealTypes.find(spec.type) == std::string_view::npos) {
      return type_error("unknown format code for a float");
    }
    negative = std::signbit(value.as_real()) && !std::isnan(value.as_real());
    digits = real_digits(std::abs(value.as_real()), spec);
  } else {
    if (spec.precision >= 0) return type_error("precision not allowed in integer format");
    if (spec.type == 'c') return type_error("format code c is not supported");
    if (spec.type != '\0' && std::string_view("bdoxXn").find(spec.type) == std::string_view::npos) {
      return type_error("unknown format code for an int");
    }
    negative = value.is_int_like() && value.as_int() < 0;
    const auto bits = value.is_int_like() ? static_cast<std::uint64_t>(value.as_int()) : value.as_large();
    digits = integer_digits(negative ? 0 - bits : bits, spec, prefix);
  }
  if (spec.grouping != '\0') {
    const bool decimal = as_real || spec.type == 'd' || spec.type == '\0';
    digits = group_digits(digits, spec.grouping, decimal ? 3 : 4);
  }
  const char sign = negative ? '-' : spec.sign;
  if (negative || spec.sign != '-') prefix.insert(prefix.begin(), sign);
  return pad(prefix, digits, spec, '>');
}

class PercentWriter {
 public:
  PercentWriter(std::string_view text, const Value& values, std::size_t max_bytes)
      : in_(text), values_(values), max_bytes_(max_bytes) {}

  Result<std::string> run() {
    while (!in_.empty()) {
      const std::size_t at = std::min(in_.find('%'), in_.size());
      out_.append(in_.substr(0, at));
      in_.remove_prefix(at);
      if (in_.empty()) break;
      in_.remove_prefix(1);
      MSTAR_TRY(field());
      if (out_.size() > max_bytes_) return exhausted("a format builds more than the template may");
    }
    const bool tuple = values_.is(Kind::tuple);
    const bool all_used = tuple ? next_ >= values_.items().size() : used_ || values_.is(Kind::dict);
    if (!all_used && !(values_.is_sequence() && !tuple)) return type_error("not all arguments converted");
    return std::move(out_);
  }

 private:
  Result<Value> argument() {
    if (values_.is(Kind::tuple)) {
      if (next_ >= values_.items().size()) return type_error("not enough arguments for format string");
      return values_.items()[next_++];
    }
    if (used_) return type_error("not enough arguments for format string");
    used_ = true;
    return values_;
  }
  Result<std::int64_t> number() {
    if (in_.starts_with('*')) {
      in_.remove_prefix(1);
      MSTAR_TRY_ASSIGN(const Value value, argument());
      if (!value.is_int_like()) return type_error("* wants int");
      return std::clamp<std::int64_t>(value.as_int(), -kMaxWidth - 1, kMaxWidth + 1);
    }
    std::int64_t out = 0;
    for (; !in_.empty() && in_[0] >= '0' && in_[0] <= '9'; in_.remove_prefix(1)) {
      out = std::min<std::int64_t>(out * 10 + (in_[0] - '0'), kMaxWidth + 1);
    }
    return out;
  }

  Status field() {
    std::optional<Value> named;
    if (in_.starts_with('(')) {
      const std::size_t close = in_.find(')');
      if (close == std::string_view::npos) return type_error("incomplete format key");
      if (!values_.is(Kind::dict)) return type_error("format requires a mapping");
      const Value* found = values_.entries().find(in_.substr(1, close - 1));
      if (!found) return type_error("the format names a key that is not there");
      named = *found;
      in_.remove_prefix(close + 1);
    }
    FieldSpec spec;
    bool zero = false;
    for (; !in_.empty() && std::string_view("-+ #0").find(in_[0]) != std::string_view::npos; in_.remove_prefix(1)) {
      if (in_[0] == '-') spec.align = '<';
      if (in_[0] == '+') spec.sign = '+';
      if (in_[0] == ' ' && spec.sign != '+') spec.sign = ' ';
      if (in_[0] == '#') spec.alternate = true;
      if (in_[0] == '0') zero = true;
    }
    MSTAR_TRY_ASSIGN(spec.width, number());
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (in_.starts_with('.')) {
      in_.remove_prefix(1);
      MSTAR_TRY_ASSIGN(spec.precision, number());
      spec.precision = std::max<std::int64_t>(spec.precision, 0);
    }
    while (in_.starts_with('l') || in_.starts_with('h') || in_.starts_with('L')) in_.remove_prefix(1);
    if (in_.empty()) return type_error("incomplete format");
    spec.type = in_[0];
    in_.remove_prefix(1);
    MSTAR_TRY(check_spec(spec));
    if (spec.type == '%') {
      out_.push_back('%');
      return {};
    }
    if (!named) {
      MSTAR_TRY_ASSIGN(named, argument());
    }
    return write(*named, spec, zero);
  }

  Status write(const Value& value, FieldSpec spec, bool zero) {
    constexpr std::string_view kNumbers = "diuoxXeEfFgG";
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      std::string text = spec.type == 's' ? to_text(value) : repr(value);
      if (spec.precision >= 0) text.resize(byte_of_character(text, static_cast<std::size_t>(spec.precision)));
      out_.append(pad("", text, spec, '>'));
      return {};
    }
    if (kNumbers.find(spec.type) == std::string_view::npos) return type_error("unsupported format character");
    if (!value.is_number())
      return type_error("a number is required for the format, not " + std::string(type_name(value)));
    if (zero && spec.align != '<') {
      spec.fill = '0';
      spec.align = '=';
    }
    Value number = value;
    if (spec.type == 'd' || spec.type == 'i' || spec.type == 'u') {
      spec.type = 'd';
      if (value.is(Kind::real)) {
        if (!(std::abs(value.as_real()) < 9e18)) return type_error("a number out of range");
        number = Value::integer(static_cast<std::int64_t>(value.as_real()));
      }
      if (spec.precision >= 0) return type_error("a precision for integers is not supported");
    }
    MSTAR_TRY_ASSIGN(const std::string text, format_number(number, spec));
    out_.append(text);
    return {};
  }

  std::string_view in_;
  const Value& values_;
  std::size_t max_bytes_;
  std::size_t next_ = 0;
  bool used_ = false;
  std::string out_;
};

Result<FieldSpec> parse_spec(std::string_view text) {
  FieldSpec spec;
  const auto is_align = [](std::string_view t) {
    return !t.empty() && std::string_view("<>^=").find(t[0]) != std::string_view::npos;
  };
  if (!text.empty()) {
    const Utf8Step first = utf8_step(text);
    if (is_align(text.substr(first.length_bytes))) {
      spec.fill = first.code_point;
      spec.align = text[first.length_bytes];
      text.remove_prefix(first.length_bytes + 1u);
    } else if (is_align(text)) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view any) {
    if (text.empty() || any.find(text[0]) == std::string_view::npos) return '\0';
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  const auto number = [&] {
    std::int64_t out = 0;
    for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1)) {
      out = std::min<std::int64_t>(out * 10 + (text[0] - '0'), kMaxWidth + 1);
    }
    return out;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  if (take("0") != '\0' && spec.align == '\0') {
    spec.fill = '0';
    spec.align = '=';
  }
  spec.width = number();
  spec.grouping = take(",_");
  if (take(".") != '\0') {
    if (text.empty() || text[0] < '0' || text[0] > '9') return type_error("format specifier missing precision");
    spec.precision = number();
  }
  spec.type = take("bcdeEfFgGnosxX%");
  if (!text.empty()) return type_error("invalid format specifier");
  MSTAR_TRY(check_spec(spec));
  return spec;
}

}  // namespace

Result<std::string> format_field(const Value& value, const FieldSpec& spec) {
  const bool is_plain = spec.width == 0 && spec.type == '\0' && spec.align == '\0' && spec.precision < 0 &&
                        spec.sign == '-' && spec.grouping == '\0' && !spec.alternate;
  if (value.is_number() && !(value.is(Kind::boolean) && is_plain)) return format_number(value, spec);
  std::string text = to_text(value);
  if (!value.is(Kind::string)) {
    if (!is_plain)
      return type_error("unsupported format string passed to " + std::string(type_name(value)) + ".__format__");
    return text;
  }
  if ((spec.type != 's' && spec.type != '\0') || spec.align == '=' || spec.sign != '-' || spec.grouping != '\0') {
    return type_error("a format that is not for strings");
  }
  if (spec.precision >= 0) text.resize(byte_of_character(text, static_cast<std::size_t>(spec.precision)));
  return pad("", text, spec, '<');
}

Result<std::string> format_percent(std::string_view text, const Value& values, std::size_t max_bytes) {
  return PercentWriter(text, values, max_bytes).run();
}

Result<std::string> format_braces(std::string_view text, const std::vector<Value>& positional,
                                  const std::vector<std::pair<std::string, Value>>& named, std::size_t max_bytes) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      out.push_back(c);
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == c) {
      out.push_back(c);
      ++at;
      continue;
    }
    const std::size_t close = text.find('}', at);
    if (c == '}' || close == std::string_view::npos) return type_error("a single brace in a format string");
    std::string_view field = text.substr(at + 1, close - at - 1);
    at = close;
    std::string_view spec_text;
    if (const std::size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec_text = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    const Value* value = nullptr;
    const auto index = parse_int(field, 10);
    if (field.empty() && next < positional.size()) value = &positional[next++];
    if (index && *index >= 0 && static_cast<std::size_t>(*index) < positional.size())
      value = &positional[static_cast<std::size_t>(*index)];
    for (const auto& [name, candidate] : named) {
      if (!field.empty() && name == field) value = &candidate;
    }
    if (!value) return type_error("the format names '" + std::string(field) + "', which is not there");
    MSTAR_TRY_ASSIGN(const FieldSpec spec, parse_spec(spec_text));
    const Value shown = conversion == 'r'   ? Value::string(repr(*value))
                        : conversion == 's' ? Value::string(to_text(*value))
                                            : *value;
    MSTAR_TRY_ASSIGN(const std::string piece, format_field(shown, spec));
    out.append(piece);
    if (out.size() > max_bytes) return exhausted("a format builds more than the template may");
  }
  return out;
}

}  // namespace mstar::jinja
