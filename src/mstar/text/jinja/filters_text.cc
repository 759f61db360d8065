// Filters from a value to a text or a number.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "mstar/text/jinja/bound_arguments.h"
#include "mstar/text/jinja/filters.h"
#include "mstar/text/jinja/python_text.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

using Bound = BoundArguments;

template <std::string (*change)(std::string_view)>
Result<Value> changed(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  MSTAR_TRY_ASSIGN(const std::string text, r.shown(subject));
  return r.text(change(text));
}

// The first letter of each word, where words also begin after brackets and hyphens.
std::string filter_title(std::string_view text) {
  std::string out;
  std::u32string word;
  const auto finish = [&] {
    if (!word.empty())
      out.append(upper(from_characters(word.substr(0, 1)))).append(lower(from_characters(word.substr(1))));
    word.clear();
  };
  // A run of separators is a word of its own.
  bool in_separators = false;
  for (const char32_t c : characters(text)) {
    const bool separator = is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (separator != in_separators) finish();
    in_separators = separator;
    word.push_back(c);
  }
  finish();
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '"':
        out.append("&#34;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string same(std::string_view text) { return std::string(text); }

Result<Value> trim(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"chars"}));
  MSTAR_TRY_ASSIGN(const std::string text, r.shown(subject));
  if (!bound.is_set(0)) return r.text(std::string(strip(text, Side::both, nullptr)));
  MSTAR_TRY_ASSIGN(const std::string chars, bound.string(r, 0, ""));
  return r.text(std::string(strip(text, Side::both, &chars)));
}

Result<Value> replace_filter(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"old", "new", "count"}, 2));
  MSTAR_TRY_ASSIGN(const std::int64_t count, bound.is_set(2) ? bound.integer(r, 2, -1) : Result<std::int64_t>(-1));
  MSTAR_TRY_ASSIGN(const std::string text, r.shown(subject));
  MSTAR_TRY_ASSIGN(const std::string from, r.shown(bound[0]));
  MSTAR_TRY_ASSIGN(const std::string to, r.shown(bound[1]));
  auto out = replace(text, from, to, count, r.bytes_left());
  if (!out) return exhausted("the template builds too much text");
  return r.text(std::move(*out));
}

Result<Value> indent(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"width", "first", "blank"}));
  if (subject.is(Kind::undefined)) return r.fail(subject.text());
  if (!subject.is(Kind::string)) return r.fail("indent wants a str");
  std::string margin;
  if (bound.has(0) && bound[0].is(Kind::string)) {
    margin = bound[0].text();
  } else {
    MSTAR_TRY_ASSIGN(const std::int64_t width, bound.integer(r, 0, 4));
    MSTAR_TRY(r.may_build(static_cast<std::size_t>(std::max<std::int64_t>(width, 0))));
    margin.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  const bool blank = bound.flag(2, false);
  const std::vector<std::string> lines = split_lines(subject.text() + "\n", false);
  MSTAR_TRY(r.charge_steps(lines.size()));
  std::string out = bound.flag(1, false) ? margin : std::string();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.push_back('\n');
    if (i > 0 && (blank || !lines[i].empty())) out.append(margin);
    out.append(lines[i]);
    MSTAR_TRY(r.may_build(out.size()));
  }
  return r.text(std::move(out));
}

Result<Value> center(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"width"}));
  Arguments passed;
  passed.positional.push_back(bound.has(0) ? bound[0] : Value::integer(80));
  MSTAR_TRY_ASSIGN(std::string text, r.shown(subject));
  return call_method(r, Value::string(std::move(text)), "center", passed);
}

Result<Value> truncate(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"length", "killwords", "end", "leeway"}));
  MSTAR_TRY_ASSIGN(const std::int64_t length, bound.integer(r, 0, 255));
  MSTAR_TRY_ASSIGN(const std::string end, bound.string(r, 2, "..."));
  MSTAR_TRY_ASSIGN(const std::int64_t leeway, bound.is_set(3) ? bound.integer(r, 3, 5) : Result<std::int64_t>(5));
  const auto end_length = static_cast<std::int64_t>(num_characters(end));
  if (length < end_length || leeway < 0) return r.fail("truncate: the length is too small");
  if (!subject.is(Kind::string)) {
    // What has a length and is short enough passes as it is.
    MSTAR_TRY_ASSIGN(const Value size, r.apply_filter("length", subject, {}));
    if (size.as_int() <= length + leeway) return subject;
    return r.fail("truncate wants a str");
  }
  const std::string& text = subject.text();
  if (static_cast<std::int64_t>(num_characters(text)) <= length + leeway) return subject;
  std::string cut = text.substr(0, byte_of_character(text, static_cast<std::size_t>(length - end_length)));
  if (!bound.flag(1, false)) {
    const std::size_t space = cut.rfind(' ');
    if (space != std::string::npos) cut.resize(space);
  }
  return r.text(cut + end);
}

Result<Value> word_count(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  MSTAR_TRY_ASSIGN(const std::string text, r.shown(subject));
  MSTAR_TRY(r.charge_steps(text.size() / 16));
  std::int64_t count = 0;
  bool in_word = false;
  for (const char32_t c : characters(text)) {
    std::string one;
    append_utf8(c, one);
    const bool word = c == '_' || all_of_class(one, CharClass::alnum);
    if (word && !in_word) ++count;
    in_word = word;
  }
  return Value::integer(count);
}

Result<Value> format_filter(Renderer& r, const Value& subject, const Arguments& a) {
  if (!a.positional.empty() && !a.named.empty())
    return r.fail("can't handle positional and keyword arguments at the same time");
  Value values = Value::sequence(Kind::tuple, a.positional);
  if (!a.named.empty()) {
    Dict named;
    for (const auto& [name, value] : a.named) named.set(name, value);
    values = Value::dict(std::move(named));
  }
  MSTAR_TRY_ASSIGN(std::string text, r.shown(subject));
  return r.binary("%", Value::string(std::move(text)), values);
}

Result<Value> to_int(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"default", "base"}));
  MSTAR_TRY_ASSIGN(const std::int64_t base, bound.integer(r, 1, 10));
  if (base != 0 && (base < 2 || base > 36)) return r.fail("int() base must be >= 2 and <= 36, or 0");
  const Value fallback = bound.has(0) ? bound[0] : Value::integer(0);
  if (subject.is(Kind::undefined)) return r.fail(subject.text());
  double real = 0;
  if (subject.is_int_like()) return Value::integer(subject.as_int());
  if (subject.is(Kind::large_integer)) return subject;
  if (subject.is(Kind::string)) {
    if (const auto value = parse_int(subject.text(), static_cast<int>(base))) return Value::integer(*value);
    const auto value = parse_real(subject.text());
    if (!value) return fallback;
    real = *value;
    if (!std::isfinite(real)) return fallback;
  } else if (subject.is(Kind::real)) {
    real = subject.as_real();
    if (std::isinf(real)) return r.fail("cannot convert float infinity to integer");
    if (std::isnan(real)) return fallback;
  } else {
    return fallback;
  }
  if (std::abs(real) >= 9.2e18) return r.fail("an integer beyond 64 bits");
  return Value::integer(static_cast<std::int64_t>(real));
}

Result<Value> to_float(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"default"}));
  if (subject.is(Kind::undefined)) return r.fail(subject.text());
  if (subject.is_number()) return Value::real(subject.as_real());
  if (subject.is(Kind::string)) {
    if (const auto value = parse_real(subject.text())) return Value::real(*value);
  }
  return bound.has(0) ? bound[0] : Value::real(0);
}

Result<Value> absolute(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (subject.is(Kind::undefined)) return r.fail(subject.text());
  if (subject.is(Kind::real)) return Value::real(std::abs(subject.as_real()));
  if (subject.is(Kind::large_integer)) return subject;
  if (!subject.is_int_like()) return r.fail("bad operand type for abs(): '" + std::string(type_name(subject)) + "'");
  return subject.as_int() < 0 ? r.binary("-", Value::integer(0), subject) : Value::integer(subject.as_int());
}

Result<Value> round_filter(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"precision", "method"}));
  MSTAR_TRY_ASSIGN(const std::int64_t precision, bound.integer(r, 0, 0));
  MSTAR_TRY_ASSIGN(const std::string method, bound.string(r, 1, "common"));
  if (method != "common" && method != "ceil" && method != "floor")
    return r.fail("method must be common, ceil or floor");
  if (subject.is(Kind::undefined)) return r.fail(subject.text());
  if (!subject.is_number())
    return r.fail("type " + std::string(type_name(subject)) + " doesn't define __round__ method");
  if (precision < 0 || precision > 300) return r.fail("round: a precision out of range");
  if (method == "common") {
    if (subject.is_int_like()) return Value::integer(subject.as_int());
    if (subject.is(Kind::large_integer)) return subject;
    if (!std::isfinite(subject.as_real())) return subject;
    // The nearest decimal of the exact value, half to even, as printf rounds.
    char buffer[1024];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), subject.as_real());
    return Value::real(parse_real(buffer).value_or(0));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = subject.as_real() * scale;
  if (!std::isfinite(scaled)) return r.fail("cannot convert a float that is not finite to an integer");
  // Python divides integers, which have no -0.
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale + 0.0);
}

Result<Value> to_json_filter(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii_only = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.is_set(1)) {
    style.indent = 0;
    style.item_separator = ",";
    if (bound[1].is(Kind::string)) {
      style.indent_text = bound[1].text();
    } else {
      MSTAR_TRY_ASSIGN(const std::int64_t width, bound.integer(r, 1, 0));
      style.indent_text.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(width, 0, 1024)), ' ');
    }
  }
  if (bound.is_set(2)) {
    MSTAR_TRY_ASSIGN(const std::vector<Value> pair, r.iterate(bound[2]));
    if (pair.size() != 2 || !pair[0].is(Kind::string) || !pair[1].is(Kind::string))
      return r.fail("separators must be two strings");
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
  }
  auto out = to_json(subject, style, r.bytes_left());
  if (!out) return out.error().code == Code::exhausted ? out.error() : r.fail(out.error().message);
  return r.text(std::move(*out));
}

struct Named {
  std::string_view name;
  Filter filter;
};
constexpr Named kFilters[] = {
    {"trim", trim},
    {"upper", changed<upper>},
    {"lower", changed<lower>},
    {"capitalize", changed<capitalize>},
    {"title", changed<filter_title>},
    {"string", changed<same>},
    {"safe", changed<same>},
    {"escape", changed<escaped>},
    {"e", changed<escaped>},
    {"replace", replace_filter},
    {"indent", indent},
    {"center", center},
    {"truncate", truncate},
    {"wordcount", word_count},
    {"format", format_filter},
    {"int", to_int},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_filter},
    {"tojson", to_json_filter},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  for (const Named& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace mstar::jinja
