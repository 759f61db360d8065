// Filters over lists and dicts.
#include <algorithm>
#include <functional>
#include <unordered_set>

#include "mstar/text/jinja/bound_arguments.h"
#include "mstar/text/jinja/filters.h"
#include "mstar/text/jinja/python_text.h"

namespace mstar::jinja {
namespace {

using Bound = BoundArguments;

Value folded(const Value& value, bool case_sensitive) {
  return value.is(Kind::string) && !case_sensitive ? Value::string(lower(value.text())) : value;
}

// Sorts `order` by the keys, stably; an error where two keys can't be compared.
Status sort_by(Renderer& r, const std::vector<Value>& keys, bool reverse, std::vector<std::size_t>& order) {
  std::optional<std::pair<std::size_t, std::size_t>> bad;
  std::size_t num_compared = 0;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    ++num_compared;
    const auto before = reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
    if (!before && !bad) bad = std::pair(a, b);
    return before.value_or(false);
  });
  MSTAR_TRY(r.charge_steps(num_compared));
  if (!bad) return {};
  return r.fail("'<' not supported between instances of '" + std::string(type_name(keys[bad->first])) + "' and '" +
                std::string(type_name(keys[bad->second])) + "'");
}

std::vector<std::size_t> counted(std::size_t count) {
  std::vector<std::size_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = i;
  return out;
}

Result<std::vector<Value>> keys_of(Renderer& r, const std::vector<Value>& items, const Value& attribute,
                                   bool case_sensitive, const Value* fallback = nullptr) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    MSTAR_TRY_ASSIGN(const Value key, r.path_of(item, attribute, fallback));
    keys.push_back(folded(key, case_sensitive));
  }
  return keys;
}

Result<Value> length(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  std::size_t count = 0;
  if (subject.is(Kind::string)) {
    MSTAR_TRY(r.charge_steps(subject.text().size() / 256));
    count = num_characters(subject.text());
  } else if (subject.is(Kind::dict)) {
    count = subject.entries().size();
  } else if (subject.is_sequence() && !subject.is(Kind::iterator)) {
    count = subject.items().size();
  } else if (!subject.is(Kind::undefined)) {
    return r.fail("object of type '" + std::string(type_name(subject)) + "' has no len()");
  }
  return Value::integer(static_cast<std::int64_t>(count));
}

Result<Value> default_filter(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"default_value", "boolean"}));
  const bool missing = subject.is(Kind::undefined) || (bound.flag(1, false) && !truthy(subject));
  if (!missing) return subject;
  return bound.has(0) ? bound[0] : Value::string("");
}

Result<Value> first(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (subject.is(Kind::iterator)) {
    return subject.take_next().value_or(Value::undefined("No first item, sequence was empty."));
  }
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Result<Value> last(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (subject.is(Kind::iterator)) return r.fail("'generator' object is not reversible");
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> list(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  MSTAR_TRY_ASSIGN(std::vector<Value> items, r.iterate(subject));
  return r.sequence(Kind::list, std::move(items));
}

Result<Value> items_filter(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (subject.is(Kind::undefined)) return r.sequence(Kind::iterator, {});
  if (!subject.is(Kind::dict)) return r.fail("Can only get item pairs from a mapping.");
  MSTAR_TRY_ASSIGN(const Value view, call_method(r, subject, "items", {}));
  return r.sequence(Kind::iterator, view.items());
}

Result<Value> reverse(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (subject.is(Kind::string)) {
    std::u32string all = characters(subject.text());
    std::reverse(all.begin(), all.end());
    return r.text(from_characters(all));
  }
  MSTAR_TRY_ASSIGN(std::vector<Value> items, r.iterate(subject));
  std::reverse(items.begin(), items.end());
  return r.sequence(subject.is(Kind::iterator) ? Kind::list : Kind::iterator, std::move(items));
}

Result<Value> join(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"d", "attribute"}));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  std::string between;
  if (bound.has(0)) {
    MSTAR_TRY_ASSIGN(between, r.shown(bound[0]));
  }
  std::string out;
  bool is_first = true;
  for (const Value& item : items) {
    Value shown = item;
    if (bound.is_set(1)) {
      MSTAR_TRY_ASSIGN(shown, r.path_of(item, bound[1]));
    }
    if (!is_first) out.append(between);
    is_first = false;
    MSTAR_TRY_ASSIGN(const std::string part, r.shown(shown));
    out.append(part);
    MSTAR_TRY(r.may_build(out.size()));
  }
  return r.text(std::move(out));
}

Result<Value> map(Renderer& r, const Value& subject, const Arguments& a) {
  std::vector<Value> out;
  if (!truthy(subject)) return r.sequence(Kind::iterator, {});
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  if (a.positional.empty()) {
    MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"attribute", "default"}));
    if (!bound.has(0)) return r.fail("map requires a filter argument");
    for (const Value& item : items) {
      MSTAR_TRY_ASSIGN(Value value, r.path_of(item, bound[0], bound.is_set(1) ? &bound[1] : nullptr));
      out.push_back(std::move(value));
    }
    return r.sequence(Kind::iterator, std::move(out));
  }
  if (!a.positional[0].is(Kind::string)) return r.fail("map wants the name of a filter");
  const Arguments passed{{a.positional.begin() + 1, a.positional.end()}, a.named};
  for (const Value& item : items) {
    MSTAR_TRY_ASSIGN(Value value, r.apply_filter(a.positional[0].text(), item, passed));
    out.push_back(std::move(value));
  }
  return r.sequence(Kind::iterator, std::move(out));
}

// select, reject, selectattr and rejectattr.
template <bool wanted, bool by_attribute>
Result<Value> choose(Renderer& r, const Value& subject, const Arguments& a) {
  if (!truthy(subject)) return r.sequence(Kind::iterator, {});
  constexpr std::size_t kTest = by_attribute ? 1 : 0;
  if (a.positional.size() < kTest) return r.fail("Missing parameter for attribute name");
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  Arguments passed{{}, a.named};
  const bool tested = a.positional.size() > kTest;
  if (tested) passed.positional.assign(a.positional.begin() + kTest + 1, a.positional.end());
  if (tested && !a.positional[kTest].is(Kind::string)) return r.fail("the name of a test must be a str");
  std::vector<Value> out;
  for (const Value& item : items) {
    Value value = item;
    if (by_attribute) {
      MSTAR_TRY_ASSIGN(value, r.path_of(item, a.positional[0]));
    }
    bool answer = truthy(value);
    if (tested) {
      MSTAR_TRY_ASSIGN(answer, r.apply_test(a.positional[kTest].text(), value, passed));
    }
    if (answer == wanted) out.push_back(item);
  }
  return r.sequence(Kind::iterator, std::move(out));
}

Result<Value> unique(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"case_sensitive", "attribute"}));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  MSTAR_TRY_ASSIGN(const std::vector<Value> keys,
                   keys_of(r, items, bound.has(1) ? bound[1] : Value::none(), bound.flag(0, false)));
  std::unordered_set<std::string> seen;
  std::vector<Value> out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto key = key_of(keys[i]);
    if (!key) return r.fail("unhashable type: '" + std::string(type_name(keys[i])) + "'");
    if (seen.insert(std::move(*key)).second) out.push_back(items[i]);
  }
  return r.sequence(Kind::iterator, std::move(out));
}

Result<Value> sort(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"reverse", "case_sensitive", "attribute"}));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  // "a,b" sorts by a, then by b.
  std::vector<Value> paths;
  if (bound.is_set(2) && bound[2].is(Kind::string)) {
    const std::string comma = ",";
    for (std::string& path : split(bound[2].text(), &comma, -1)) paths.push_back(Value::string(std::move(path)));
  } else {
    paths.push_back(bound.has(2) ? bound[2] : Value::none());
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const Value& path : paths) {
      MSTAR_TRY_ASSIGN(const Value part, r.path_of(item, path));
      key.push_back(folded(part, bound.flag(1, false)));
    }
    keys.push_back(Value::list(std::move(key)));
  }
  std::vector<std::size_t> order = counted(items.size());
  MSTAR_TRY(sort_by(r, keys, bound.flag(0, false), order));
  std::vector<Value> out;
  for (const std::size_t at : order) out.push_back(items[at]);
  return r.sequence(Kind::list, std::move(out));
}

Result<Value> dict_sort(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"case_sensitive", "by", "reverse"}));
  MSTAR_TRY_ASSIGN(const std::string by, bound.string(r, 1, "key"));
  if (by != "key" && by != "value") return r.fail("You can only sort by either \"key\" or \"value\"");
  if (!subject.is(Kind::dict)) return r.fail("dictsort wants a mapping");
  MSTAR_TRY_ASSIGN(const Value view, call_method(r, subject, "items", {}));
  std::vector<Value> keys;
  for (const Value& pair : view.items()) {
    keys.push_back(folded(pair.items()[by == "key" ? 0 : 1], bound.flag(0, false)));
  }
  std::vector<std::size_t> order = counted(keys.size());
  MSTAR_TRY(sort_by(r, keys, bound.flag(2, false), order));
  std::vector<Value> out;
  for (const std::size_t at : order) out.push_back(view.items()[at]);
  return r.sequence(Kind::list, std::move(out));
}

Result<Value> group_by(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"attribute", "default", "case_sensitive"}, 1));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  const Value* fallback = bound.is_set(1) ? &bound[1] : nullptr;
  MSTAR_TRY_ASSIGN(const std::vector<Value> keys, keys_of(r, items, bound[0], bound.flag(2, false), fallback));
  MSTAR_TRY_ASSIGN(const std::vector<Value> shown, keys_of(r, items, bound[0], true, fallback));
  std::vector<std::size_t> order = counted(items.size());
  MSTAR_TRY(sort_by(r, keys, false, order));
  std::vector<Value> out;
  for (std::size_t i = 0; i < order.size();) {
    std::vector<Value> group;
    const std::size_t from = order[i];
    for (; i < order.size() && equal(keys[order[i]], keys[from]); ++i) group.push_back(items[order[i]]);
    out.push_back(Value::sequence(Kind::tuple, {shown[from], Value::list(std::move(group))}));
  }
  return r.sequence(Kind::list, std::move(out));
}

Result<Value> sum(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"attribute", "start"}));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is(Kind::string)) return r.fail("sum() can't sum strings");
  for (const Value& item : items) {
    MSTAR_TRY_ASSIGN(const Value value, r.path_of(item, bound.has(0) ? bound[0] : Value::none()));
    MSTAR_TRY_ASSIGN(total, r.binary("+", total, value));
  }
  return total;
}

template <bool greatest>
Result<Value> extreme(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"case_sensitive", "attribute"}));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  MSTAR_TRY_ASSIGN(const std::vector<Value> keys,
                   keys_of(r, items, bound.has(1) ? bound[1] : Value::none(), bound.flag(0, false)));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const auto better = greatest ? less(keys[best], keys[i]) : less(keys[i], keys[best]);
    if (!better) return r.fail("'<' not supported between these values");
    if (*better) best = i;
  }
  return items[best];
}

Result<Value> batch(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"linecount", "fill_with"}, 1));
  MSTAR_TRY_ASSIGN(const std::int64_t count, bound.integer(r, 0, 0));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  std::vector<Value> out, line;
  for (const Value& item : items) {
    if (static_cast<std::int64_t>(line.size()) == count) {
      out.push_back(Value::list(std::move(line)));
      line.clear();
    }
    line.push_back(item);
  }
  if (!line.empty()) {
    if (bound.is_set(1) && static_cast<std::int64_t>(line.size()) < count) {
      MSTAR_TRY(r.may_build(static_cast<std::size_t>(std::min<std::int64_t>(count, 1LL << 40)) * sizeof(Value)));
      line.resize(static_cast<std::size_t>(count), bound[1]);
    }
    out.push_back(Value::list(std::move(line)));
  }
  return r.sequence(Kind::iterator, std::move(out));
}

Result<Value> slice(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"slices", "fill_with"}, 1));
  MSTAR_TRY_ASSIGN(const std::int64_t slices, bound.integer(r, 0, 0));
  MSTAR_TRY_ASSIGN(const std::vector<Value> items, r.iterate(subject));
  if (slices == 0) return r.fail("integer division or modulo by zero");
  std::vector<Value> out;
  if (slices < 0) return r.sequence(Kind::iterator, {});
  MSTAR_TRY(r.charge_steps(static_cast<std::size_t>(slices)));
  MSTAR_TRY(r.may_build(static_cast<std::size_t>(slices) * 128));
  const std::size_t count = static_cast<std::size_t>(slices), each = items.size() / count, extra = items.size() % count;
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Value> part;
    for (std::size_t n = each + (i < extra ? 1 : 0); n > 0; --n) part.push_back(items[at++]);
    if (bound.is_set(1) && i >= extra) part.push_back(bound[1]);
    out.push_back(Value::list(std::move(part)));
  }
  return r.sequence(Kind::iterator, std::move(out));
}

Result<Value> attr(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"name"}, 1));
  MSTAR_TRY_ASSIGN(const std::string name, bound.string(r, 0, ""));
  if (subject.is(Kind::dict) && !has_method(subject, name)) {
    return Value::undefined("'dict object' has no attribute '" + name + "'");
  }
  return r.attribute_of(subject, name);
}

struct Named {
  std::string_view name;
  Filter filter;
};
constexpr Named kFilters[] = {
    {"length", length},
    {"count", length},
    {"default", default_filter},
    {"d", default_filter},
    {"first", first},
    {"last", last},
    {"list", list},
    {"items", items_filter},
    {"reverse", reverse},
    {"join", join},
    {"map", map},
    {"select", choose<true, false>},
    {"reject", choose<false, false>},
    {"selectattr", choose<true, true>},
    {"rejectattr", choose<false, true>},
    {"unique", unique},
    {"sort", sort},
    {"dictsort", dict_sort},
    {"groupby", group_by},
    {"sum", sum},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"batch", batch},
    {"slice", slice},
    {"attr", attr},
};

}  // namespace

Filter find_list_filter(std::string_view name) {
  for (const Named& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace mstar::jinja
