// The methods of str, dict and list.
#include <algorithm>
#include <iterator>

#include "mstar/text/jinja/bound_arguments.h"
#include "mstar/text/jinja/python_text.h"
#include "mstar/text/jinja/renderer.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

using Bound = BoundArguments;
using Method = Result<Value> (*)(Renderer&, const Value&, const Arguments&);

Result<Value> list_of_texts(Renderer& r, std::vector<std::string> parts, Kind kind = Kind::list) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) {
    MSTAR_TRY_ASSIGN(Value item, r.text(std::move(part)));
    items.push_back(std::move(item));
  }
  return r.sequence(kind, std::move(items));
}

template <Side side>
Result<Value> strip_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"chars"}));
  if (!bound.is_set(0)) return r.text(std::string(strip(self.text(), side, nullptr)));
  MSTAR_TRY_ASSIGN(const std::string chars, bound.string(r, 0, ""));
  return r.text(std::string(strip(self.text(), side, &chars)));
}

template <bool from_right>
Result<Value> split_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"sep", "maxsplit"}));
  MSTAR_TRY_ASSIGN(const std::int64_t most, bound.integer(r, 1, -1));
  std::string separator;
  if (bound.is_set(0)) {
    MSTAR_TRY_ASSIGN(separator, bound.string(r, 0, ""));
    if (separator.empty()) return r.fail("empty separator");
  }
  // Each part costs a value beside its text.
  MSTAR_TRY(r.charge_steps(self.text().size() / 64));
  MSTAR_TRY(r.may_build(self.text().size() * 2));
  const std::string* by = bound.is_set(0) ? &separator : nullptr;
  return list_of_texts(r, from_right ? split_right(self.text(), by, most) : split(self.text(), by, most));
}

Result<Value> split_lines_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"keepends"}));
  MSTAR_TRY(r.charge_steps(self.text().size() / 64));
  return list_of_texts(r, split_lines(self.text(), bound.flag(0, false)));
}

template <bool at_start>
Result<Value> affix_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"prefix"}, 1));
  const std::vector<Value> one = {bound[0]};
  const std::vector<Value>& wanted = bound[0].is(Kind::tuple) ? bound[0].items() : one;
  const std::string_view text = self.text();
  bool found = false;
  for (const Value& affix : wanted) {
    if (!affix.is(Kind::string)) return r.fail("startswith and endswith want a str or a tuple of str");
    found = found || (at_start ? text.starts_with(affix.text()) : text.ends_with(affix.text()));
  }
  return Value::boolean(found);
}

Result<Value> replace_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"old", "new", "count"}, 2));
  MSTAR_TRY_ASSIGN(const std::string from, bound.string(r, 0, ""));
  MSTAR_TRY_ASSIGN(const std::string to, bound.string(r, 1, ""));
  MSTAR_TRY_ASSIGN(const std::int64_t count, bound.integer(r, 2, -1));
  auto out = replace(self.text(), from, to, count, r.bytes_left());
  if (!out) return exhausted("the template builds too much text");
  return r.text(std::move(*out));
}

template <std::string (*change)(std::string_view)>
Result<Value> text_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  return r.text(change(self.text()));
}

template <bool (*test)(std::string_view)>
Result<Value> case_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  return Value::boolean(test(self.text()));
}

template <CharClass which>
Result<Value> class_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  return Value::boolean(all_of_class(self.text(), which));
}

// find, rfind, index, rindex; the bounds are left out.
template <bool from_right, bool must>
Result<Value> find_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"sub"}, 1));
  MSTAR_TRY_ASSIGN(const std::string wanted, bound.string(r, 0, ""));
  const std::string& text = self.text();
  MSTAR_TRY(r.charge_steps(text.size() / 256));
  const std::size_t at = from_right ? text.rfind(wanted) : text.find(wanted);
  if (at != std::string::npos)
    return Value::integer(static_cast<std::int64_t>(num_characters(std::string_view(text).substr(0, at))));
  if (must) return r.fail("substring not found");
  return Value::integer(-1);
}

Result<Value> count_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"sub"}, 1));
  if (!self.is(Kind::string)) {
    MSTAR_TRY(r.charge_steps(self.items().size()));
    return Value::integer(std::count_if(self.items().begin(), self.items().end(),
                                        [&](const Value& item) { return equal(item, bound[0]); }));
  }
  MSTAR_TRY_ASSIGN(const std::string wanted, bound.string(r, 0, ""));
  const std::string_view text = self.text();
  MSTAR_TRY(r.charge_steps(text.size() / 256));
  if (wanted.empty()) return Value::integer(static_cast<std::int64_t>(num_characters(text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, at + wanted.size()))
    ++count;
  return Value::integer(count);
}

Result<Value> join_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"iterable"}, 1));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(bound[0]));
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::string))
      return r.fail("sequence item " + std::to_string(i) + ": expected str instance, " +
                    std::string(type_name(items[i])) + " found");
    if (i > 0) out.append(self.text());
    out.append(items[i].text());
    MSTAR_TRY(r.may_build(out.size()));
  }
  return r.text(std::move(out));
}

Result<Value> format_method(Renderer& r, const Value& self, const Arguments& a) {
  for (const Value& value : a.positional) MSTAR_TRY(r.shown(value));
  for (const auto& [name, value] : a.named) MSTAR_TRY(r.shown(value));
  auto out = format_braces(self.text(), a.positional, a.named, r.bytes_left());
  if (!out) return out.error().code == Code::exhausted ? out.error() : r.fail(out.error().message);
  return r.text(std::move(*out));
}

template <bool from_right>
Result<Value> partition_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"sep"}, 1));
  MSTAR_TRY_ASSIGN(const std::string by, bound.string(r, 0, ""));
  if (by.empty()) return r.fail("empty separator");
  const std::string& text = self.text();
  const std::size_t at = from_right ? text.rfind(by) : text.find(by);
  if (at == std::string::npos) {
    return from_right ? list_of_texts(r, {"", "", text}, Kind::tuple) : list_of_texts(r, {text, "", ""}, Kind::tuple);
  }
  return list_of_texts(r, {text.substr(0, at), by, text.substr(at + by.size())}, Kind::tuple);
}

template <bool prefix>
Result<Value> remove_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"affix"}, 1));
  MSTAR_TRY_ASSIGN(const std::string affix, bound.string(r, 0, ""));
  std::string_view text = self.text();
  if (prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!prefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return r.text(std::string(text));
}

// ljust, rjust, center and zfill.
template <char align>
Result<Value> pad_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"width", "fillchar"}, 1));
  MSTAR_TRY_ASSIGN(const std::int64_t width, bound.integer(r, 0, 0));
  MSTAR_TRY_ASSIGN(const std::string fill, bound.string(r, 1, align == '0' ? "0" : " "));
  if (num_characters(fill) != 1) return r.fail("the fill character must be exactly one character long");
  std::string text = self.text();
  const auto length = static_cast<std::int64_t>(num_characters(text));
  if (width <= length) return r.text(std::move(text));
  const std::int64_t missing = width - length;
  MSTAR_TRY(r.may_build(static_cast<std::size_t>(std::min<std::int64_t>(missing, 1LL << 40)) * fill.size()));
  // CPython puts the odd one to the left of a text of odd length.
  const std::int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 + (missing & width & 1) : missing;
  std::string before, after;
  for (std::int64_t i = 0; i < missing; ++i) (i < left ? before : after).append(fill);
  const bool sign = align == '0' && !text.empty() && (text[0] == '-' || text[0] == '+');
  if (sign) return r.text(text.substr(0, 1) + before + text.substr(1));
  return r.text(before + text + after);
}

Result<Value> get_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"key", "default"}, 1));
  if (!a.named.empty()) return r.fail("dict.get() takes no keyword arguments");
  if (!key_of(bound[0])) return r.fail("unhashable type: '" + std::string(type_name(bound[0])) + "'");
  if (const Value* found = self.entries().find(bound[0])) return *found;
  return bound.has(1) ? bound[1] : Value::none();
}

template <Kind kind>
Result<Value> view_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  std::vector<Value> items;
  for (const auto& [key, value] : self.entries().entries()) {
    if (kind == Kind::dict_keys) items.push_back(key);
    if (kind == Kind::dict_values) items.push_back(value);
    if (kind == Kind::dict_items) items.push_back(Value::sequence(Kind::tuple, {key, value}));
  }
  MSTAR_TRY(r.charge_steps(items.size()));
  return r.sequence(kind, std::move(items));
}

Result<Value> copy_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  return self;
}

Result<Value> index_method(Renderer& r, const Value& self, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"value"}, 1));
  MSTAR_TRY(r.charge_steps(self.items().size()));
  for (std::size_t i = 0; i < self.items().size(); ++i) {
    if (equal(self.items()[i], bound[0])) return Value::integer(static_cast<std::int64_t>(i));
  }
  return r.fail("the value is not in the list");
}

struct Named {
  std::string_view name;
  Method method;
};

constexpr Named kTextMethods[] = {
    {"strip", strip_method<Side::both>},
    {"lstrip", strip_method<Side::left>},
    {"rstrip", strip_method<Side::right>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", split_lines_method},
    {"startswith", affix_method<true>},
    {"endswith", affix_method<false>},
    {"replace", replace_method},
    {"upper", text_method<upper>},
    {"lower", text_method<lower>},
    {"title", text_method<python_title>},
    {"capitalize", text_method<capitalize>},
    {"swapcase", text_method<swap_case>},
    {"islower", case_method<is_lower>},
    {"isupper", case_method<is_upper>},
    {"isalpha", class_method<CharClass::alpha>},
    {"isdigit", class_method<CharClass::digit>},
    {"isdecimal", class_method<CharClass::decimal>},
    {"isnumeric", class_method<CharClass::numeric>},
    {"isalnum", class_method<CharClass::alnum>},
    {"isspace", class_method<CharClass::space>},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_method},
    {"join", join_method},
    {"format", format_method},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"removeprefix", remove_method<true>},
    {"removesuffix", remove_method<false>},
    {"ljust", pad_method<'<'>},
    {"rjust", pad_method<'>'>},
    {"center", pad_method<'^'>},
    {"zfill", pad_method<'0'>},
};
constexpr Named kDictMethods[] = {
    {"get", get_method},
    {"keys", view_method<Kind::dict_keys>},
    {"values", view_method<Kind::dict_values>},
    {"items", view_method<Kind::dict_items>},
    {"copy", copy_method},
};
constexpr Named kListMethods[] = {{"index", index_method}, {"count", count_method}, {"copy", copy_method}};
constexpr std::string_view kListMutators[] = {"append", "reverse", "insert", "sort",
                                              "extend", "remove",  "pop",    "clear"};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <std::size_t n>
Method find_in(const Named (&table)[n], std::string_view name) {
  for (const Named& entry : table) {
    if (entry.name == name) return entry.method;
  }
  return nullptr;
}

Method find_method_of(const Value& receiver, std::string_view name) {
  if (receiver.is(Kind::string)) return find_in(kTextMethods, name);
  if (receiver.is(Kind::dict)) return find_in(kDictMethods, name);
  if (receiver.is(Kind::tuple) || receiver.is(Kind::range))
    return name == "copy" ? nullptr : find_in(kListMethods, name);
  if (receiver.is(Kind::list)) return find_in(kListMethods, name);
  return nullptr;
}

}  // namespace

bool has_method(const Value& receiver, std::string_view name) { return find_method_of(receiver, name) != nullptr; }

bool is_mutator(const Value& receiver, std::string_view name) {
  const auto in = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (receiver.is(Kind::list) && in(kListMutators)) || (receiver.is(Kind::dict) && in(kDictMutators));
}

Result<Value> call_method(Renderer& renderer, const Value& receiver, std::string_view name,
                          const Arguments& arguments) {
  const Method method = find_method_of(receiver, name);
  if (!method) return renderer.fail("there is no such method");
  return method(renderer, receiver, arguments);
}

}  // namespace mstar::jinja
