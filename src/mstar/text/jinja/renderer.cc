#include "mstar/text/jinja/renderer.h"

#include <algorithm>

#include "mstar/text/jinja/lexer.h"
#include "mstar/text/jinja/python_text.h"
#include "mstar/text/jinja/renderer_bodies.h"

namespace mstar::jinja {

Renderer::Renderer(const TemplateTree& tree, const Dict& variables, const std::tm& now, RenderLimits limits)
    : tree_(tree), now_(now), limits_(limits) {
  variables_.reserve(tree.names.size());
  for (const std::string& name : tree.names) variables_.push_back(variables.find(name));
  const auto loop = std::find(tree.names.begin(), tree.names.end(), "loop");
  if (loop != tree.names.end()) loop_id_ = static_cast<int>(loop - tree.names.begin());
}

Error Renderer::fail(std::string_view message) const { return template_error(line_, message); }

Status Renderer::charge_steps(std::size_t count) {
  steps_ += static_cast<std::int64_t>(std::min<std::size_t>(count, 1u << 30));
  if (steps_ > limits_.max_steps)
    return exhausted("template line " + std::to_string(line_) + ": the template takes too many steps");
  return {};
}

Status Renderer::may_build(std::size_t num_bytes) const {
  if (num_bytes > bytes_left())
    return exhausted("template line " + std::to_string(line_) + ": the template builds too much text");
  return {};
}

Result<Value> Renderer::text(std::string text) {
  MSTAR_TRY(may_build(text.size() + 64));
  built_bytes_ += text.size() + 64;
  return Value::string(std::move(text));
}

Result<Value> Renderer::sequence(Kind kind, std::vector<Value> items) {
  const std::size_t num_bytes = items.size() * sizeof(Value) + 64;
  MSTAR_TRY(may_build(num_bytes));
  built_bytes_ += num_bytes;
  Value out = Value::sequence(kind, std::move(items));
  if (out.depth() > kMaxValueDepth) return fail("lists nested too deeply");
  return out;
}

Result<Value> Renderer::dict(Dict entries) {
  const std::size_t num_bytes = entries.size() * 4 * sizeof(Value) + 128;
  MSTAR_TRY(may_build(num_bytes));
  built_bytes_ += num_bytes;
  Value out = Value::dict(std::move(entries));
  if (out.depth() > kMaxValueDepth) return fail("dicts nested too deeply");
  return out;
}

Result<std::string> Renderer::run() {
  push_frame(-1);
  enter(tree_.scope);
  MSTAR_TRY(block(tree_.body));
  return std::move(output_);
}

std::size_t Renderer::push_frame(std::int32_t parent) {
  Frame frame;
  frame.parent = parent;
  frame.serial = next_serial_++;
  frames_.push_back(std::move(frame));
  return frames_.size() - 1;
}

void Renderer::enter(const Scope& scope) {
  for (const ScopeLoad& load : scope) {
    Value value;
    if (load.from == ScopeLoad::From::given) value = given(load.name_id);
    if (load.from == ScopeLoad::From::outer) value = lookup_from(top().parent, load.name_id);
    if (load.from == ScopeLoad::From::undefined) value = unknown(load.name_id);
    top().variables.emplace_back(load.name_id, std::move(value));
  }
}

Status Renderer::emit(std::string_view text) {
  const std::size_t limit = out_ == &output_ ? limits_.max_output_bytes : bytes_left();
  if (text.size() > limit || out_->size() > limit - text.size())
    return exhausted("template line " + std::to_string(line_) + ": the template writes too much text");
  out_->append(text);
  return {};
}

Status Renderer::emit_value(const Value& value) {
  if (value.is(Kind::string)) return emit(value.text());
  MSTAR_TRY_ASSIGN(const std::string text, shown(value));
  return emit(text);
}

Result<std::string> Renderer::shown(const Value& value) const {
  if (!has_text(value))
    return fail("to print an object, such as a function, a generator or most ranges, is not supported");
  return to_text(value);
}

Result<Renderer::Flow> Renderer::block(const Block& statements) {
  const Nested nested(*this);
  if (nested.too_deep()) return fail("statements nested too deeply");
  for (const Stmt& stmt : statements) {
    MSTAR_TRY_ASSIGN(const Flow flow, statement(stmt));
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Result<Renderer::Flow> Renderer::statement(const Stmt& stmt) {
  line_ = stmt.line;
  MSTAR_TRY(charge_steps(1));
  switch (stmt.kind) {
    case StmtKind::data:
      MSTAR_TRY(emit(stmt.text));
      return Flow::normal;
    case StmtKind::output: {
      MSTAR_TRY_ASSIGN(const Value value, eval(*stmt.value));
      MSTAR_TRY(emit_value(value));
      return Flow::normal;
    }
    case StmtKind::if_:
      return if_chain(stmt);
    case StmtKind::for_:
      return for_loop(stmt);
    case StmtKind::set: {
      MSTAR_TRY_ASSIGN(const Value value, eval(*stmt.value));
      MSTAR_TRY(assign(stmt.target, value));
      return Flow::normal;
    }
    case StmtKind::set_block:
      MSTAR_TRY(set_block(stmt));
      return Flow::normal;
    case StmtKind::with:
      return with(stmt);
    case StmtKind::macro: {
      const Value macro = make_macro(stmt);
      MSTAR_TRY(assign(stmt.target, macro));
      return Flow::normal;
    }
    case StmtKind::call_block:
      MSTAR_TRY(call_block(stmt));
      return Flow::normal;
    case StmtKind::filter_block: {
      MSTAR_TRY_ASSIGN(const Value value, captured(stmt));
      MSTAR_TRY(emit_value(value));
      return Flow::normal;
    }
    case StmtKind::scope: {
      MSTAR_TRY_ASSIGN(const Value value, call(make_macro(stmt), {}));
      MSTAR_TRY(emit_value(value));
      return Flow::normal;
    }
    case StmtKind::break_:
      return Flow::broken;
    case StmtKind::continue_:
      return Flow::continued;
  }
  return Flow::normal;
}

Result<Renderer::Flow> Renderer::if_chain(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    MSTAR_TRY_ASSIGN(const Value condition, eval(*branch.condition));
    if (truthy(condition)) return block(branch.body);
  }
  return block(stmt.body);
}

// A loop's condition is asked when the loop comes to the item, or looks ahead to it: what the body changes counts.
Status Renderer::fill_loop(LoopBody& loop, std::size_t count) {
  while (loop.items.size() < count && loop.next_waiting < loop.waiting.size()) {
    Value& item = loop.waiting[loop.next_waiting++];
    push_frame(loop.outer_frame);
    enter(loop.stmt->condition_scope);
    MSTAR_TRY(assign(loop.stmt->target, item));
    MSTAR_TRY_ASSIGN(const Value condition, eval(*loop.stmt->condition));
    frames_.pop_back();
    if (truthy(condition)) loop.items.push_back(std::move(item));
  }
  return {};
}

Result<Renderer::Flow> Renderer::for_loop(const Stmt& stmt) {
  MSTAR_TRY_ASSIGN(const Value value, eval(*stmt.value));
  MSTAR_TRY_ASSIGN(std::vector<Value> items, iterate(value));
  bool completed = false;
  if (!items.empty()) {
    MSTAR_TRY_ASSIGN(completed, loop_body(stmt, std::move(items)));
  }
  // jinja2 runs the else part also where every iteration left by break or continue.
  if (completed || stmt.else_body.empty()) return Flow::normal;
  push_frame(static_cast<std::int32_t>(frames_.size()) - 1);
  enter(stmt.else_scope);
  MSTAR_TRY_ASSIGN(const Flow flow, block(stmt.else_body));
  frames_.pop_back();
  return flow;
}

Result<bool> Renderer::loop_body(const Stmt& stmt, std::vector<Value> items) {
  MSTAR_TRY(may_build(items.size() * sizeof(Value)));
  built_bytes_ += items.size() * sizeof(Value);
  auto body = std::make_unique<LoopBody>();
  LoopBody& loop = *body;
  loop.stmt = &stmt;
  loop.outer_frame = static_cast<std::int32_t>(frames_.size()) - 1;
  (stmt.condition ? loop.waiting : loop.items) = std::move(items);
  owned_.push_back(std::move(body));
  push_frame(loop.outer_frame);
  bool completed = false;
  for (loop.index0 = 0;; ++loop.index0) {
    MSTAR_TRY(fill_loop(loop, loop.index0 + 1));
    if (loop.index0 >= loop.items.size()) break;
    top().variables.clear();
    top().serial = next_serial_++;
    if (stmt.uses_loop) top().variables.emplace_back(loop_id_, Value::borrowed_object(loop));
    MSTAR_TRY(charge_steps(1));
    MSTAR_TRY(assign(stmt.target, loop.items[loop.index0]));
    enter(stmt.scope);
    MSTAR_TRY_ASSIGN(const Flow flow, block(stmt.body));
    if (flow == Flow::broken) break;
    completed = completed || flow == Flow::normal;
  }
  frames_.pop_back();
  return completed;
}

Result<Value> Renderer::captured(const Stmt& stmt) {
  std::string buffer;
  std::string* const outer = out_;
  out_ = &buffer;
  push_frame(static_cast<std::int32_t>(frames_.size()) - 1);
  enter(stmt.scope);
  auto flow = block(stmt.body);
  out_ = outer;
  if (!flow) return std::move(flow.error());
  MSTAR_TRY_ASSIGN(Value subject, text(std::move(buffer)));
  MSTAR_TRY_ASSIGN(Value value, through_filters(stmt.value.get(), std::move(subject)));
  frames_.pop_back();
  return value;
}

Result<Value> Renderer::through_filters(const Expr* chain, Value subject) {
  if (!chain) return subject;
  MSTAR_TRY_ASSIGN(subject, through_filters(chain->parts[0].get(), std::move(subject)));
  MSTAR_TRY_ASSIGN(const Arguments arguments, arguments_of(*chain));
  return apply_filter(chain->text, subject, arguments);
}

Status Renderer::set_block(const Stmt& stmt) {
  MSTAR_TRY_ASSIGN(const Value value, captured(stmt));
  return assign(stmt.target, value);
}

Result<Renderer::Flow> Renderer::with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, expr] : stmt.assignments) {
    MSTAR_TRY_ASSIGN(Value value, eval(*expr));
    values.push_back(std::move(value));
  }
  push_frame(static_cast<std::int32_t>(frames_.size()) - 1);
  for (std::size_t i = 0; i < values.size(); ++i) MSTAR_TRY(assign(stmt.assignments[i].first, values[i]));
  enter(stmt.scope);
  MSTAR_TRY_ASSIGN(const Flow flow, block(stmt.body));
  frames_.pop_back();
  return flow;
}

Status Renderer::call_block(const Stmt& stmt) {
  const Expr& expr = *stmt.value;
  MSTAR_TRY_ASSIGN(const Value callee, eval(*expr.parts[0]));
  MSTAR_TRY_ASSIGN(Arguments arguments, arguments_of(expr));
  arguments.named.emplace_back("caller", make_macro(stmt));
  MSTAR_TRY_ASSIGN(const Value value, call(callee, std::move(arguments)));
  return emit_value(value);
}

Status Renderer::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    MSTAR_TRY_ASSIGN(const std::vector<Value> items, iterate(value));
    if (items.size() < target.parts.size()) return fail("not enough values to unpack");
    if (items.size() > target.parts.size()) return fail("too many values to unpack");
    for (std::size_t i = 0; i < items.size(); ++i) MSTAR_TRY(assign(target.parts[i], items[i]));
    return {};
  }
  if (!target.attribute.empty()) {
    const Value object = lookup(target.name_id);
    const auto* space = object.is(Kind::object) ? dynamic_cast<const Namespace*>(object.body()) : nullptr;
    if (!space) return fail("cannot assign attribute on non-namespace object");
    MSTAR_TRY(may_build(128));
    built_bytes_ += 128;
    // Namespaces are made by this renderer, which owns them.
    const_cast<Namespace*>(space)->attributes.set(target.attribute, value);
    return {};
  }
  for (auto& [name, old] : top().variables) {
    if (name == target.name_id) {
      old = value;
      return {};
    }
  }
  top().variables.emplace_back(target.name_id, value);
  return {};
}

Value Renderer::make_macro(const Stmt& stmt) {
  auto macro = std::make_unique<MacroBody>();
  macro->stmt = &stmt;
  macro->frame = static_cast<std::int32_t>(frames_.size()) - 1;
  macro->frame_serial = top().serial;
  owned_.push_back(std::move(macro));
  return Value::borrowed_object(*owned_.back());
}

Value Renderer::make_namespace(Dict attributes) {
  auto space = std::make_unique<Namespace>();
  space->attributes = std::move(attributes);
  owned_.push_back(std::move(space));
  return Value::borrowed_object(*owned_.back());
}

Value Renderer::lookup(int name_id) { return lookup_from(static_cast<std::int32_t>(frames_.size()) - 1, name_id); }

Value Renderer::lookup_from(std::int32_t at, int name_id) {
  while (at >= 0) {
    const Frame& frame = frames_[static_cast<std::size_t>(at)];
    for (const auto& [name, value] : frame.variables) {
      if (name == name_id) return value;
    }
    at = frame.parent;
  }
  return unknown(name_id);
}

Value Renderer::unknown(int name_id) const {
  return Value::undefined("'" + tree_.names[static_cast<std::size_t>(name_id)] + "' is undefined");
}

Value Renderer::given(int name_id) {
  if (const Value* value = variables_[static_cast<std::size_t>(name_id)]) return *value;

  static const FunctionBody kFunctions[] = {
      FunctionBody("range"),  FunctionBody("dict"),         FunctionBody("namespace"), FunctionBody("raise_exception"),
      FunctionBody("cycler"), FunctionBody("strftime_now"), FunctionBody("joiner")};
  for (const FunctionBody& function : kFunctions) {
    if (function.name == tree_.names[static_cast<std::size_t>(name_id)]) return Value::borrowed_object(function);
  }
  return unknown(name_id);
}

}  // namespace mstar::jinja
