// jinja2's tests ("is ..."), and how filters and tests are found.
#include <cmath>

#include "mstar/text/jinja/bound_arguments.h"
#include "mstar/text/jinja/filters.h"
#include "mstar/text/jinja/python_text.h"
#include "mstar/text/jinja/renderer.h"

namespace mstar::jinja {
namespace {

using Test = Result<bool> (*)(Renderer&, const Value&, const Arguments&);
using Bound = BoundArguments;

template <bool (*answer)(const Value&)>
Result<bool> plain(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  return answer(subject);
}
template <Kind kind>
bool is_kind(const Value& v) {
  return v.is(kind);
}
bool is_defined(const Value& v) { return !v.is(Kind::undefined); }
bool is_true(const Value& v) { return v.is(Kind::boolean) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Kind::boolean) && !v.as_bool(); }
bool is_integer(const Value& v) { return v.is(Kind::integer) || v.is(Kind::large_integer); }
bool is_any_number(const Value& v) { return v.is_number(); }
bool is_indexed(const Value& v) {
  return v.is(Kind::string) || v.is(Kind::dict) || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::range) ||
         v.is(Kind::undefined);
}
bool is_iterable(const Value& v) {
  return v.is_sequence() || v.is(Kind::string) || v.is(Kind::dict) || v.is(Kind::undefined);
}
bool is_callable(const Value& v) {
  // jinja2's Undefined has a __call__, which raises.
  return v.is(Kind::undefined) || (v.is(Kind::object) && dynamic_cast<const Namespace*>(v.body()) == nullptr);
}
template <bool (*answer)(std::string_view)>
Result<bool> of_text(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  MSTAR_TRY_ASSIGN(const std::string text, r.shown(subject));
  return answer(text);
}

template <int remainder>
Result<bool> parity(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  MSTAR_TRY_ASSIGN(const Value rest, r.binary("%", subject, Value::integer(2)));
  return equal(rest, Value::integer(remainder));
}
Result<bool> divisible(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"num"}, 1));
  MSTAR_TRY_ASSIGN(const Value rest, r.binary("%", subject, bound[0]));
  return equal(rest, Value::integer(0));
}
Result<bool> same_as(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"other"}, 1));
  if (subject.kind() != bound[0].kind()) return false;
  if (subject.body() || bound[0].body()) {
    return subject.body() == bound[0].body() || (subject.is(Kind::string) && subject.text() == bound[0].text());
  }
  return equal(subject, bound[0]);
}
Result<bool> in(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"seq"}, 1));
  return r.contains(bound[0], subject);
}
enum class Order : std::uint8_t { equal, unequal, below, at_most, above, at_least };
template <Order order>
Result<bool> ordered(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {"b"}, 1));
  constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
  return r.compare(kOps[static_cast<std::size_t>(order)], subject, bound[0]);
}
Result<bool> is_filter(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (!key_of(subject)) return r.fail("unhashable type: '" + std::string(type_name(subject)) + "'");
  if (!subject.is(Kind::string)) return false;
  return find_text_filter(subject.text()) != nullptr || find_list_filter(subject.text()) != nullptr;
}
Result<bool> is_test(Renderer& r, const Value& subject, const Arguments& a) {
  MSTAR_TRY_ASSIGN(const Bound bound, Bound::bind(r, a, {}));
  if (!key_of(subject)) return r.fail("unhashable type: '" + std::string(type_name(subject)) + "'");
  return subject.is(Kind::string) && is_test_name(subject.text());
}

struct Named {
  std::string_view name;
  Test test;
};
constexpr Named kTests[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_kind<Kind::undefined>>},
    {"none", plain<is_kind<Kind::none>>},
    {"boolean", plain<is_kind<Kind::boolean>>},
    {"true", plain<is_true>},
    {"false", plain<is_false>},
    {"integer", plain<is_integer>},
    {"float", plain<is_kind<Kind::real>>},
    {"number", plain<is_any_number>},
    {"string", plain<is_kind<Kind::string>>},
    {"mapping", plain<is_kind<Kind::dict>>},
    {"sequence", plain<is_indexed>},
    {"iterable", plain<is_iterable>},
    {"callable", plain<is_callable>},
    {"lower", of_text<is_lower>},
    {"upper", of_text<is_upper>},
    {"odd", parity<1>},
    {"even", parity<0>},
    {"divisibleby", divisible},
    {"sameas", same_as},
    {"in", in},
    {"==", ordered<Order::equal>},
    {"eq", ordered<Order::equal>},
    {"equalto", ordered<Order::equal>},
    {"!=", ordered<Order::unequal>},
    {"ne", ordered<Order::unequal>},
    {"<", ordered<Order::below>},
    {"lt", ordered<Order::below>},
    {"lessthan", ordered<Order::below>},
    {"<=", ordered<Order::at_most>},
    {"le", ordered<Order::at_most>},
    {">", ordered<Order::above>},
    {"gt", ordered<Order::above>},
    {"greaterthan", ordered<Order::above>},
    {">=", ordered<Order::at_least>},
    {"ge", ordered<Order::at_least>},
    {"filter", is_filter},
    {"test", is_test},
};

Test find_test(std::string_view name) {
  for (const Named& entry : kTests) {
    if (entry.name == name) return entry.test;
  }
  return nullptr;
}

}  // namespace

bool is_test_name(std::string_view name) { return find_test(name) != nullptr; }

Result<bool> Renderer::apply_test(std::string_view name, const Value& subject, const Arguments& arguments) {
  const Test test = find_test(name);
  if (!test) return fail("there is no test '" + std::string(name) + "'");
  MSTAR_TRY(charge_steps(1));
  return test(*this, subject, arguments);
}

Result<Value> Renderer::apply_filter(std::string_view name, const Value& subject, const Arguments& arguments) {
  Filter filter = find_text_filter(name);
  if (!filter) filter = find_list_filter(name);
  if (!filter) return fail("there is no filter '" + std::string(name) + "'");
  MSTAR_TRY(charge_steps(1));
  return filter(*this, subject, arguments);
}

}  // namespace mstar::jinja
