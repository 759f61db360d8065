// Expressions but calls.
#include <algorithm>
#include <cmath>
#include <optional>

#include "mstar/text/jinja/python_text.h"
#include "mstar/text/jinja/renderer.h"
#include "mstar/text/jinja/renderer_bodies.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {

Result<Value> Renderer::eval(const Expr& expr) {
  const Nested nested(*this);
  line_ = expr.line;
  if (nested.too_deep()) return fail("expressions nested too deeply");
  MSTAR_TRY(charge_steps(1));
  return eval_inner(expr);
}

Result<Value> Renderer::eval_inner(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::constant:
      return expr.constant;
    case ExprKind::name:
      return lookup(expr.name_id);
    case ExprKind::attribute: {
      MSTAR_TRY_ASSIGN(const Value object, eval(*expr.parts[0]));
      line_ = expr.line;
      return attribute_of(object, expr.text);
    }
    case ExprKind::item: {
      MSTAR_TRY_ASSIGN(const Value object, eval(*expr.parts[0]));
      MSTAR_TRY_ASSIGN(const Value key, eval(*expr.parts[1]));
      line_ = expr.line;
      return item_of(object, key);
    }
    case ExprKind::slice:
      return eval_slice(expr);
    case ExprKind::call:
      return eval_call(expr);
    case ExprKind::filter: {
      MSTAR_TRY_ASSIGN(const Value subject, eval(*expr.parts[0]));
      MSTAR_TRY_ASSIGN(const Arguments arguments, arguments_of(expr));
      line_ = expr.line;
      return apply_filter(expr.text, subject, arguments);
    }
    case ExprKind::test: {
      MSTAR_TRY_ASSIGN(const Value subject, eval(*expr.parts[0]));
      MSTAR_TRY_ASSIGN(const Arguments arguments, arguments_of(expr));
      line_ = expr.line;
      MSTAR_TRY_ASSIGN(const bool answer, apply_test(expr.text, subject, arguments));
      return Value::boolean(answer);
    }
    case ExprKind::negate:
    case ExprKind::positive:
      return eval_sign(expr);
    case ExprKind::logical_not: {
      MSTAR_TRY_ASSIGN(const Value value, eval(*expr.parts[0]));
      return Value::boolean(!truthy(value));
    }
    case ExprKind::binary: {
      MSTAR_TRY_ASSIGN(const Value left, eval(*expr.parts[0]));
      MSTAR_TRY_ASSIGN(const Value right, eval(*expr.parts[1]));
      line_ = expr.line;
      return binary(expr.text, left, right);
    }
    case ExprKind::logical_and:
    case ExprKind::logical_or: {
      MSTAR_TRY_ASSIGN(Value left, eval(*expr.parts[0]));
      if (truthy(left) == (expr.kind == ExprKind::logical_or)) return left;
      return eval(*expr.parts[1]);
    }
    case ExprKind::compare:
      return eval_compare(expr);
    case ExprKind::concat:
      return eval_concat(expr);
    case ExprKind::condition: {
      MSTAR_TRY_ASSIGN(const Value condition, eval(*expr.parts[0]));
      if (truthy(condition)) return eval(*expr.parts[1]);
      if (expr.parts[2]) return eval(*expr.parts[2]);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
    }
    case ExprKind::list:
    case ExprKind::tuple:
    case ExprKind::dict:
      return eval_collection(expr);
  }
  return Value();
}

Result<Value> Renderer::eval_sign(const Expr& expr) {
  MSTAR_TRY_ASSIGN(const Value value, eval(*expr.parts[0]));
  const bool minus = expr.kind == ExprKind::negate;
  if (value.is(Kind::undefined)) return fail(value.text());
  if (value.is(Kind::real)) return Value::real(minus ? -value.as_real() : value.as_real());
  if (!value.is_int_like()) return fail("bad operand type for unary sign: '" + std::string(type_name(value)) + "'");
  return minus ? integer_op("-", 0, value.as_int()) : Value::integer(value.as_int());
}

Result<Value> Renderer::eval_collection(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.parts.size());
  for (const ExprPtr& part : expr.parts) {
    MSTAR_TRY_ASSIGN(Value item, eval(*part));
    items.push_back(std::move(item));
  }
  if (expr.kind != ExprKind::dict)
    return sequence(expr.kind == ExprKind::list ? Kind::list : Kind::tuple, std::move(items));
  Dict out;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!out.set(items[i], items[i + 1])) return fail("unhashable type: '" + std::string(type_name(items[i])) + "'");
  }
  return dict(std::move(out));
}

Result<Value> Renderer::eval_concat(const Expr& expr) {
  std::vector<Value> values;
  for (const ExprPtr& part : expr.parts) {
    MSTAR_TRY_ASSIGN(Value value, eval(*part));
    values.push_back(std::move(value));
  }
  std::string out;
  for (const Value& value : values) {
    if (value.is(Kind::string)) {
      out.append(value.text());
    } else {
      MSTAR_TRY_ASSIGN(const std::string part, shown(value));
      out.append(part);
    }
    MSTAR_TRY(may_build(out.size()));
  }
  return text(std::move(out));
}

Result<bool> Renderer::compare(std::string_view op, const Value& left, const Value& right) {
  MSTAR_TRY(charge_steps(left.is_sequence()      ? left.items().size()
                         : left.is(Kind::string) ? left.text().size() / 256
                                                 : 0));
  if (op == "==") return equal(left, right);
  if (op == "!=") return !equal(left, right);
  if (op == "in") return contains(right, left);
  if (op == "not in") {
    MSTAR_TRY_ASSIGN(const bool found, contains(right, left));
    return !found;
  }
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::undefined)) return fail(side->text());
  }
  const bool swap = op == ">" || op == "<=";
  const auto answer = swap ? less(right, left) : less(left, right);
  if (!answer) {
    return fail("'" + std::string(op) + "' not supported between instances of '" + std::string(type_name(left)) +
                "' and '" + std::string(type_name(right)) + "'");
  }
  const auto is_nan = [](const Value& v) { return v.is(Kind::real) && std::isnan(v.as_real()); };
  if (op.size() == 1) return *answer;
  return !*answer && !is_nan(left) && !is_nan(right);
}

Result<Value> Renderer::eval_compare(const Expr& expr) {
  MSTAR_TRY_ASSIGN(Value left, eval(*expr.parts[0]));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    MSTAR_TRY_ASSIGN(Value right, eval(*expr.parts[i + 1]));
    line_ = expr.line;
    MSTAR_TRY_ASSIGN(const bool answer, compare(expr.operators[i], left, right));
    if (!answer) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<bool> Renderer::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (item.is(Kind::undefined)) return fail(item.text());
      if (!item.is(Kind::string))
        return fail("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
      MSTAR_TRY(charge_steps(container.text().size() / 256));
      return container.text().find(item.text()) != std::string::npos;
    case Kind::dict:
      if (!key_of(item)) return fail("unhashable type: '" + std::string(type_name(item)) + "'");
      return container.entries().find(item) != nullptr;
    case Kind::iterator:
      while (const auto next = container.take_next()) {
        MSTAR_TRY(charge_steps(1));
        if (equal(*next, item)) return true;
      }
      return false;
    default:
      break;
  }
  if (!container.is_sequence())
    return fail("argument of type '" + std::string(type_name(container)) + "' is not iterable");
  MSTAR_TRY(charge_steps(container.items().size()));
  return std::any_of(container.items().begin(), container.items().end(),
                     [&](const Value& other) { return equal(other, item); });
}

Result<std::vector<Value>> Renderer::iterate(const Value& value) {
  if (value.is_sequence()) {
    MSTAR_TRY(charge_steps(value.items().size() / 8));
    return value.take_items();
  }
  std::vector<Value> out;
  if (value.is(Kind::undefined)) return out;
  if (value.is(Kind::dict)) {
    MSTAR_TRY(charge_steps(value.entries().size() / 8));
    for (const auto& [key, item] : value.entries().entries()) out.push_back(key);
    return out;
  }
  if (!value.is(Kind::string)) return fail("'" + std::string(type_name(value)) + "' object is not iterable");
  const std::string& text = value.text();
  MSTAR_TRY(may_build(text.size() * 128));
  built_bytes_ += text.size() * 128;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_step(std::string_view(text).substr(at)).length_bytes;
    out.push_back(Value::string(text.substr(at, length)));
    at += length;
  }
  return out;
}

namespace {

struct SliceBounds {
  std::int64_t start, stop, step;
};

// Python's slice.indices().
SliceBounds slice_bounds(const std::optional<std::int64_t>& start, const std::optional<std::int64_t>& stop,
                         std::int64_t step, std::int64_t length) {
  const auto clip = [&](std::int64_t index) {
    if (index < 0) index = index < -length ? -1 : index + length;
    const std::int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
    return std::clamp(index, std::min(low, high), std::max(low, high));
  };
  const std::int64_t first = start ? clip(*start) : step < 0 ? length - 1 : 0;
  const std::int64_t last = stop ? clip(*stop) : step < 0 ? -1 : length;
  return {first, last, step};
}

}  // namespace

Result<Value> Renderer::eval_slice(const Expr& expr) {
  MSTAR_TRY_ASSIGN(const Value object, eval(*expr.parts[0]));
  std::optional<std::int64_t> bounds[3];
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expr.parts[i + 1]) continue;
    MSTAR_TRY_ASSIGN(const Value bound, eval(*expr.parts[i + 1]));
    if (bound.is(Kind::none)) continue;
    if (!bound.is_int_like()) return fail("slice indices must be integers or None");
    bounds[i] = bound.as_int();
  }
  line_ = expr.line;
  if (object.is(Kind::undefined)) return fail(object.text());
  const std::int64_t step = std::clamp<std::int64_t>(bounds[2].value_or(1), -(1LL << 40), 1LL << 40);
  if (step == 0) return fail("slice step cannot be zero");
  const auto pick = [&](std::int64_t length, auto take) {
    const SliceBounds range = slice_bounds(bounds[0], bounds[1], step, length);
    for (std::int64_t i = range.start; step > 0 ? i < range.stop : i > range.stop; i += step) take(i);
  };
  if (object.is(Kind::string)) {
    const std::u32string all = characters(object.text());
    MSTAR_TRY(charge_steps(all.size() / 64));
    std::u32string out;
    pick(static_cast<std::int64_t>(all.size()),
         [&](std::int64_t i) { out.push_back(all[static_cast<std::size_t>(i)]); });
    return text(from_characters(out));
  }
  if (!object.is(Kind::list) && !object.is(Kind::tuple) && !object.is(Kind::range))
    return fail("a slice of '" + std::string(type_name(object)) + "' is not supported");
  const std::vector<Value>& all = object.items();
  MSTAR_TRY(charge_steps(all.size() / 8));
  std::vector<Value> out;
  pick(static_cast<std::int64_t>(all.size()), [&](std::int64_t i) { out.push_back(all[static_cast<std::size_t>(i)]); });
  return sequence(object.kind(), std::move(out));
}

Result<Value> Renderer::integer_op(std::string_view op, std::int64_t a, std::int64_t b) const {
  const Error overflow = fail("an integer beyond 64 bits");
  std::int64_t out = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &out) ? Result<Value>(overflow) : Value::integer(out);
  if (op == "-") return __builtin_sub_overflow(a, b, &out) ? Result<Value>(overflow) : Value::integer(out);
  if (op == "*") return __builtin_mul_overflow(a, b, &out) ? Result<Value>(overflow) : Value::integer(out);
  if (op == "**") {
    if (b < 0) return real_op(op, static_cast<double>(a), static_cast<double>(b));
    if (a == 0 || a == 1) return Value::integer(b == 0 ? 1 : a);
    if (a == -1) return Value::integer(b % 2 == 0 ? 1 : -1);
    out = 1;
    for (std::int64_t i = 0; i < b; ++i) {
      if (__builtin_mul_overflow(out, a, &out)) return overflow;
    }
    return Value::integer(out);
  }
  if (b == 0) return fail("division by zero");
  if (op == "/") {
    // Rounded once: what a double holds exactly is divided as such.
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    const bool exact = a <= kExact && a >= -kExact && b <= kExact && b >= -kExact;
    if (exact) return Value::real(static_cast<double>(a) / static_cast<double>(b));
    return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  if (b == -1) return op == "%" ? Result<Value>(Value::integer(0)) : integer_op("-", 0, a);
  const std::int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == "%") return Value::integer(adjust ? remainder + b : remainder);
  return Value::integer(a / b - (adjust ? 1 : 0));
}

Result<Value> Renderer::real_op(std::string_view op, double a, double b) const {
  if (op == "+") return Value::real(a + b);
  if (op == "-") return Value::real(a - b);
  if (op == "*") return Value::real(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) return fail("0.0 cannot be raised to a negative power");
    if (a < 0 && b != std::trunc(b)) return fail("complex numbers are not supported");
    const double out = std::pow(a, b);
    if (std::isinf(out) && std::isfinite(a) && std::isfinite(b)) return fail("Numerical result out of range");
    return Value::real(out);
  }
  if (b == 0) return fail("float division by zero");
  if (op == "/") return Value::real(a / b);
  // As CPython: the remainder takes the sign of the divisor, the quotient is built from it.
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (op == "%") return Value::real(remainder);
  if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
  const double floored = std::floor(quotient);
  return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
}

Result<Value> Renderer::repeat(const Value& subject, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (subject.is(Kind::string)) {
    const std::string& unit = subject.text();
    if (!unit.empty() && times > 0) {
      MSTAR_TRY(may_build(times > bytes_left() / unit.size() ? bytes_left() + 1 : times * unit.size()));
    }
    std::string out;
    if (!unit.empty()) out.reserve(times * unit.size());
    for (std::size_t i = 0; i < times && !unit.empty(); ++i) out.append(unit);
    return text(std::move(out));
  }
  const std::vector<Value>& unit = subject.items();
  std::vector<Value> out;
  if (!unit.empty() && times > 0) {
    const std::size_t unit_bytes = unit.size() * sizeof(Value);
    MSTAR_TRY(may_build(times > bytes_left() / unit_bytes ? bytes_left() + 1 : times * unit_bytes));
    out.reserve(times * unit.size());
    for (std::size_t i = 0; i < times; ++i) out.insert(out.end(), unit.begin(), unit.end());
  }
  return sequence(subject.kind(), std::move(out));
}

Result<Value> Renderer::binary(std::string_view op, const Value& left, const Value& right) {
  const auto repeatable = [](const Value& v) { return v.is(Kind::string) || v.is(Kind::list) || v.is(Kind::tuple); };
  if (op == "%" && left.is(Kind::string)) {
    MSTAR_TRY(shown(right));
    auto formatted = format_percent(left.text(), right, bytes_left());
    if (!formatted)
      return formatted.error().code == Code::exhausted ? formatted.error() : fail(formatted.error().message);
    return text(std::move(*formatted));
  }
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::undefined)) return fail(side->text());
  }
  if (left.is_number() && right.is_number()) {
    const bool any_large = left.is(Kind::large_integer) || right.is(Kind::large_integer);
    if (any_large && !left.is(Kind::real) && !right.is(Kind::real)) return fail("an integer beyond 64 bits");
    if (left.is_int_like() && right.is_int_like()) return integer_op(op, left.as_int(), right.as_int());
    return real_op(op, left.as_real(), right.as_real());
  }
  if (op == "*" && repeatable(left) && right.is_int_like()) return repeat(left, right.as_int());
  if (op == "*" && left.is_int_like() && repeatable(right)) return repeat(right, left.as_int());
  if (op == "+" && left.kind() == right.kind() && repeatable(left)) {
    if (left.is(Kind::string)) {
      MSTAR_TRY(may_build(left.text().size() + right.text().size()));
      return text(left.text() + right.text());
    }
    std::vector<Value> items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    return sequence(left.kind(), std::move(items));
  }
  return fail("unsupported operand type(s) for " + std::string(op) + ": '" + std::string(type_name(left)) + "' and '" +
              std::string(type_name(right)) + "'");
}

}  // namespace mstar::jinja
