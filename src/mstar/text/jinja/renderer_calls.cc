// Attributes, subscripts and calls.
#include <algorithm>

#include "mstar/text/jinja/bound_arguments.h"
#include "mstar/text/jinja/python_text.h"
#include "mstar/text/jinja/renderer.h"
#include "mstar/text/jinja/renderer_bodies.h"
#include "mstar/text/utf8.h"

namespace mstar::jinja {
namespace {

// jinja2's sandbox refuses longer ranges.
constexpr std::int64_t kMaxRange = 100'000;
constexpr std::size_t kMaxTimeFormatBytes = 256;

Value missing(const Value& object, std::string_view name) {
  std::string message = "'";
  message.append(type_name(object)).append(" object' has no attribute '").append(name).append("'");
  return Value::undefined(std::move(message));
}

bool is_decimal(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Result<Value> Renderer::attribute_of(const Value& object, std::string_view name) {
  if (object.is(Kind::undefined)) return fail(object.text());
  if (object.is(Kind::object)) {
    if (const auto* space = dynamic_cast<const Namespace*>(object.body())) {
      const Value* found = space->attributes.find(name);
      return found ? *found : missing(object, name);
    }
    // Loops are made by this renderer, which owns them.
    if (auto* loop = const_cast<LoopBody*>(dynamic_cast<const LoopBody*>(object.body())))
      return loop_attribute(*loop, name);
    if (const auto* cycler = dynamic_cast<const CyclerBody*>(object.body())) {
      if (!cycler->is_joiner && name == "current") return cycler->items[cycler->at];
    }
  }
  if (is_mutator(object, name)) {
    return Value::undefined("access to attribute '" + std::string(name) + "' of '" + std::string(type_name(object)) +
                            "' object is unsafe.");
  }
  if (has_method(object, name) || object.is(Kind::object)) {
    auto method = std::make_shared<MethodBody>();
    method->receiver = object;
    method->name = name;
    const bool known = !object.is(Kind::object) || dynamic_cast<const CyclerBody*>(object.body()) != nullptr;
    if (!known) return missing(object, name);
    if (object.depth() >= kMaxValueDepth) return fail("values nested too deeply");
    return Value::object(std::move(method), object.depth() + 1);
  }
  if (object.is(Kind::dict)) {
    if (const Value* found = object.entries().find(name)) return *found;
  }
  return missing(object, name);
}

Result<Value> Renderer::item_of(const Value& object, const Value& key) {
  if (object.is(Kind::undefined)) return fail(object.text());
  if (object.is(Kind::dict)) {
    if (const Value* found = object.entries().find(key)) return *found;
  } else if (key.is_int_like() && (object.is(Kind::list) || object.is(Kind::tuple) || object.is(Kind::range))) {
    const auto size = static_cast<std::int64_t>(object.items().size());
    const std::int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (at >= 0 && at < size) return object.items()[static_cast<std::size_t>(at)];
  } else if (key.is_int_like() && object.is(Kind::string)) {
    const std::string& all = object.text();
    MSTAR_TRY(charge_steps(all.size() / 256));
    const auto size = static_cast<std::int64_t>(num_characters(all));
    const std::int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (at >= 0 && at < size) {
      const std::size_t begin = byte_of_character(all, static_cast<std::size_t>(at));
      return text(all.substr(begin, utf8_step(std::string_view(all).substr(begin)).length_bytes));
    }
  }
  if (!key.is(Kind::string)) return missing(object, has_text(key) ? to_text(key) : type_name(key));
  return object.is(Kind::dict) && !has_method(object, key.text()) && !is_mutator(object, key.text())
             ? Result<Value>(missing(object, key.text()))
             : attribute_of(object, key.text());
}

Result<Value> Renderer::path_of(const Value& object, const Value& path, const Value* fallback) {
  if (path.is(Kind::none)) return object;
  if (!path.is(Kind::string)) {
    MSTAR_TRY_ASSIGN(Value item, item_of(object, path));
    return fallback && item.is(Kind::undefined) ? *fallback : std::move(item);
  }
  Value out = object;
  std::string_view rest = path.text();
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const auto index = is_decimal(part) ? parse_int(part, 10) : std::nullopt;
    MSTAR_TRY_ASSIGN(out, item_of(out, index ? Value::integer(*index) : Value::string(std::string(part))));
    if (fallback && out.is(Kind::undefined)) out = *fallback;
    if (dot == std::string_view::npos) return out;
    rest.remove_prefix(dot + 1);
  }
}

Result<Arguments> Renderer::arguments_of(const Expr& expr) {
  Arguments out;
  out.positional.reserve(expr.arguments.size());
  for (const ExprPtr& argument : expr.arguments) {
    MSTAR_TRY_ASSIGN(Value value, eval(*argument));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : expr.named_arguments) {
    MSTAR_TRY_ASSIGN(Value value, eval(*argument));
    out.named.emplace_back(name, std::move(value));
  }
  if (expr.more_arguments) {
    MSTAR_TRY_ASSIGN(const Value more, eval(*expr.more_arguments));
    MSTAR_TRY_ASSIGN(const std::vector<Value> items, iterate(more));
    out.positional.insert(out.positional.end(), items.begin(), items.end());
  }
  if (expr.more_named_arguments) {
    MSTAR_TRY_ASSIGN(const Value more, eval(*expr.more_named_arguments));
    if (!more.is(Kind::dict)) return fail("argument after ** must be a mapping");
    for (const auto& [key, value] : more.entries().entries()) {
      if (!key.is(Kind::string)) return fail("keywords must be strings");
      out.named.emplace_back(key.text(), value);
    }
  }
  return out;
}

Result<Value> Renderer::eval_call(const Expr& expr) {
  MSTAR_TRY_ASSIGN(const Value callee, eval(*expr.parts[0]));
  MSTAR_TRY_ASSIGN(Arguments arguments, arguments_of(expr));
  line_ = expr.line;
  return call(callee, std::move(arguments));
}

Result<Value> Renderer::call(const Value& callee, Arguments arguments) {
  if (callee.is(Kind::undefined)) return fail(callee.text());
  if (!callee.is(Kind::object)) return fail("'" + std::string(type_name(callee)) + "' object is not callable");
  if (const auto* macro = dynamic_cast<const MacroBody*>(callee.body())) {
    return call_macro(*macro, std::move(arguments));
  }
  if (const auto* function = dynamic_cast<const FunctionBody*>(callee.body())) {
    return call_function(*function, arguments);
  }
  if (const auto* method = dynamic_cast<const MethodBody*>(callee.body())) {
    const Body* receiver = method->receiver.body();
    if (const auto* loop = dynamic_cast<const LoopBody*>(receiver)) {
      return call_loop_method(*loop, method->name, arguments);
    }
    if (auto* cycler = const_cast<CyclerBody*>(dynamic_cast<const CyclerBody*>(receiver))) {
      const std::size_t at = cycler->at;
      if (method->name == "next") cycler->at = (at + 1) % cycler->items.size();
      if (method->name == "next") return cycler->items[at];
      if (method->name != "reset") return fail("a cycler has no such method");
      cycler->at = 0;
      return Value::none();
    }
    return call_method(*this, method->receiver, method->name, arguments);
  }
  if (auto* joiner = const_cast<CyclerBody*>(dynamic_cast<const CyclerBody*>(callee.body()));
      joiner && joiner->is_joiner) {
    return joiner->at++ == 0 ? Value::string("") : joiner->items[0];
  }
  return fail("the object is not callable");
}

Result<Value> Renderer::call_macro(const MacroBody& macro, Arguments arguments) {
  const Signature& signature = *macro.stmt->signature;
  const auto frame = static_cast<std::size_t>(macro.frame);
  const bool alive = frame < frames_.size() && frames_[frame].serial == macro.frame_serial;
  if (!alive) return fail("to call a macro outside of the block that defines it is not supported");
  push_frame(macro.frame);
  std::vector<std::pair<int, Value>> bound;
  const std::size_t num_names = signature.names.size();
  std::vector<bool> given(num_names, false);
  for (std::size_t i = 0; i < num_names; ++i) {
    Value value = Value::undefined("parameter '" + tree_.names[static_cast<std::size_t>(signature.names[i])] +
                                   "' was not provided");
    if (i < arguments.positional.size()) {
      value = std::move(arguments.positional[i]);
      given[i] = true;
    } else {
      const auto named = std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& argument) {
        return argument.first == tree_.names[static_cast<std::size_t>(signature.names[i])];
      });
      if (named != arguments.named.end()) {
        value = std::move(named->second);
        given[i] = true;
        arguments.named.erase(named);
      }
    }
    bound.emplace_back(signature.names[i], std::move(value));
  }
  const auto caller = std::find_if(arguments.named.begin(), arguments.named.end(),
                                   [](const auto& argument) { return argument.first == "caller"; });
  if (signature.caller_id >= 0) {
    const bool found = caller != arguments.named.end();
    bound.emplace_back(signature.caller_id, found ? caller->second : Value::undefined("No caller defined"));
    if (found) arguments.named.erase(caller);
  }
  if (signature.kwargs_id >= 0) {
    Dict rest;
    for (const auto& [name, value] : arguments.named) rest.set(name, value);
    MSTAR_TRY_ASSIGN(Value kwargs, dict(std::move(rest)));
    bound.emplace_back(signature.kwargs_id, std::move(kwargs));
  } else if (!arguments.named.empty()) {
    return fail("macro '" + signature.title + "' takes no keyword argument '" + arguments.named[0].first + "'");
  }
  std::vector<Value> rest;
  for (std::size_t i = num_names; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
  if (signature.varargs_id >= 0) {
    MSTAR_TRY_ASSIGN(Value varargs, sequence(Kind::tuple, std::move(rest)));
    bound.emplace_back(signature.varargs_id, std::move(varargs));
  } else if (!rest.empty()) {
    return fail("macro '" + signature.title + "' takes not more than " + std::to_string(num_names) + " argument(s)");
  }
  top().variables = std::move(bound);
  enter(macro.stmt->scope);
  const std::size_t first_default = num_names - signature.defaults.size();
  for (std::size_t i = first_default; i < num_names; ++i) {
    if (given[i]) continue;
    MSTAR_TRY_ASSIGN(Value value, eval(*signature.defaults[i - first_default]));
    top().variables[i].second = std::move(value);
  }
  std::string buffer;
  std::string* const outer = out_;
  out_ = &buffer;
  const auto flow = block(macro.stmt->body);
  out_ = outer;
  if (!flow) return flow.error();
  frames_.pop_back();
  return text(std::move(buffer));
}

namespace {

Result<Value> make_range(Renderer& renderer, const Arguments& arguments) {
  std::int64_t bounds[3] = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) return renderer.fail("range expects 1 to 3 arguments");
  for (std::size_t i = 0; i < count; ++i) {
    const Value& value = arguments.positional[i];
    if (value.is(Kind::undefined)) return renderer.fail(value.text());
    if (!value.is_int_like())
      return renderer.fail("'" + std::string(type_name(value)) + "' object cannot be interpreted as an integer");
    bounds[count == 1 ? 1 : i] = value.as_int();
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) return renderer.fail("range() arg 3 must not be zero");
  const long double span = (static_cast<long double>(stop) - static_cast<long double>(start)) / step;
  if (span > kMaxRange) return renderer.fail("range too big");
  std::vector<Value> items;
  std::int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  MSTAR_TRY(renderer.charge_steps(items.size()));
  return renderer.sequence(Kind::range, std::move(items));
}

Result<Dict> make_dict(Renderer& renderer, const Arguments& arguments) {
  Dict out;
  if (arguments.positional.size() > 1) return renderer.fail("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::undefined)) return renderer.fail(from.text());
    if (from.is(Kind::dict)) {
      out = from.entries();
    } else {
      MSTAR_TRY_ASSIGN(const std::vector<Value> pairs, renderer.iterate(from));
      for (const Value& pair : pairs) {
        MSTAR_TRY_ASSIGN(const std::vector<Value> two, renderer.iterate(pair));
        if (two.size() != 2) return renderer.fail("dict update sequence elements must be pairs");
        if (!out.set(two[0], two[1])) return renderer.fail("unhashable type: '" + std::string(type_name(two[0])) + "'");
      }
    }
  }
  for (const auto& [name, value] : arguments.named) out.set(name, value);
  return out;
}

// strftime of a time without a zone.
Result<Value> format_time(Renderer& renderer, const Arguments& arguments) {
  MSTAR_TRY_ASSIGN(const auto bound, BoundArguments::bind(renderer, arguments, {"format"}, 1));
  MSTAR_TRY_ASSIGN(const std::string format, bound.string(renderer, 0, ""));
  if (format.size() > kMaxTimeFormatBytes) return renderer.fail("a time format that is too long");
  std::string plain;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      plain.push_back(format[i]);
      continue;
    }
    ++i;
    if (format[i] == 'f') plain.append("000000");
    if (format[i] != 'f' && format[i] != 'z' && format[i] != 'Z') plain.append({'%', format[i]});
  }
  char buffer[16384];
  const std::size_t length = plain.empty() ? 0 : std::strftime(buffer, sizeof buffer, plain.c_str(), &renderer.now());
  return renderer.text(std::string(buffer, length));
}

}  // namespace

Result<Value> Renderer::call_function(const FunctionBody& function, const Arguments& arguments) {
  const std::string& name = function.name;
  if (name == "range") return make_range(*this, arguments);
  if (name == "strftime_now") return format_time(*this, arguments);
  if (name == "dict" || name == "namespace") {
    MSTAR_TRY_ASSIGN(Dict entries, make_dict(*this, arguments));
    if (name == "dict") return dict(std::move(entries));
    MSTAR_TRY(may_build(entries.size() * 4 * sizeof(Value) + 128));
    built_bytes_ += entries.size() * 4 * sizeof(Value) + 128;
    return make_namespace(std::move(entries));
  }
  if (name == "raise_exception") {
    MSTAR_TRY_ASSIGN(const auto bound, BoundArguments::bind(*this, arguments, {"message"}, 1));
    MSTAR_TRY_ASSIGN(std::string message, shown(bound[0]));
    return invalid_request(std::move(message));
  }
  auto cycler = std::make_unique<CyclerBody>();
  cycler->is_joiner = name == "joiner";
  cycler->items = arguments.positional;
  if (cycler->is_joiner) {
    MSTAR_TRY_ASSIGN(const auto bound, BoundArguments::bind(*this, arguments, {"sep"}));
    cycler->items = {bound.has(0) ? bound[0] : Value::string(", ")};
  } else if (cycler->items.empty()) {
    return fail("at least one item has to be provided");
  }
  MSTAR_TRY(may_build(cycler->items.size() * sizeof(Value) + 128));
  built_bytes_ += cycler->items.size() * sizeof(Value) + 128;
  owned_.push_back(std::move(cycler));
  return Value::borrowed_object(*owned_.back());
}

Result<Value> Renderer::loop_attribute(LoopBody& loop, std::string_view name) {
  if (name == "last" || name == "nextitem") MSTAR_TRY(fill_loop(loop, loop.index0 + 2));
  if (name == "length" || name == "revindex" || name == "revindex0")
    MSTAR_TRY(fill_loop(loop, loop.items.size() + loop.waiting.size()));
  const auto at = static_cast<std::int64_t>(loop.index0);
  const auto length = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return Value::integer(at + 1);
  if (name == "index0") return Value::integer(at);
  if (name == "revindex") return Value::integer(length - at);
  if (name == "revindex0") return Value::integer(length - at - 1);
  if (name == "first") return Value::boolean(at == 0);
  if (name == "last") return Value::boolean(at + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return at > 0 ? loop.items[loop.index0 - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return at + 1 < length ? loop.items[loop.index0 + 1] : Value::undefined("there is no next item");
  if (name != "cycle" && name != "changed")
    return Value::undefined("'loop' has no attribute '" + std::string(name) + "'");
  auto method = std::make_shared<MethodBody>();
  method->receiver = Value::borrowed_object(loop);
  method->name = name;
  return Value::object(std::move(method), 1);
}

Result<Value> Renderer::call_loop_method(const LoopBody& loop, std::string_view name, const Arguments& arguments) {
  if (!arguments.named.empty()) return fail("unexpected keyword argument");
  if (name == "cycle") {
    if (arguments.positional.empty()) return fail("no items for cycling given");
    return arguments.positional[loop.index0 % arguments.positional.size()];
  }
  LoopBody& changing = const_cast<LoopBody&>(loop);  // made by this renderer
  bool same = loop.has_changed && loop.last_changed.size() == arguments.positional.size();
  for (std::size_t i = 0; same && i < arguments.positional.size(); ++i) {
    same = equal(loop.last_changed[i], arguments.positional[i]);
  }
  changing.last_changed = arguments.positional;
  changing.has_changed = true;
  return Value::boolean(!same);
}

}  // namespace mstar::jinja
