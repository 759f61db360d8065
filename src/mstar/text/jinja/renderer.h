// Evaluates a parsed template.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/text/jinja/ast.h"
#include "mstar/text/jinja/value.h"

namespace mstar::jinja {

// What one rendering may use up; `exhausted` beyond that.
struct RenderLimits {
  std::int64_t max_steps = 10'000'000;       // expressions and statements evaluated, values walked over
  std::size_t max_output_bytes = 64u << 20;  // what is returned
  std::size_t max_built_bytes = 256u << 20;  // all texts and lists ever built
};

// The values of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A namespace(): the only thing that templates can change.
struct Namespace final : Body {
  Dict attributes;
};

// One rendering. Thread: one owner, once.
class Renderer {
 public:
  // `tree`, `variables` and `now` are borrowed.
  Renderer(const TemplateTree& tree, const Dict& variables, const std::tm& now, RenderLimits limits);

  // bad_model where the template fails (jinja2 raises), with the line; invalid_request with the template's own words
  // where it calls raise_exception.
  Result<std::string> run();

  // For filters, tests and methods.
  Status charge_steps(std::size_t count);
  Result<Value> text(std::string text);
  Result<Value> sequence(Kind kind, std::vector<Value> items);
  Result<Value> dict(Dict entries);
  // Refuses to begin what would exceed max_built_bytes.
  Status may_build(std::size_t num_bytes) const;
  std::size_t bytes_left() const { return limits_.max_built_bytes - built_bytes_; }
  Result<std::vector<Value>> iterate(const Value& value);
  Result<Value> attribute_of(const Value& object, std::string_view name);
  Result<Value> item_of(const Value& object, const Value& key);
  // "a.b.0" as filters take attributes, or an index. `fallback` stands for each part that is undefined.
  Result<Value> path_of(const Value& object, const Value& path, const Value* fallback = nullptr);
  Result<Value> apply_filter(std::string_view name, const Value& subject, const Arguments& arguments);
  Result<bool> apply_test(std::string_view name, const Value& subject, const Arguments& arguments);
  // `op` is one of == != < <= > >= in not in.
  Result<bool> compare(std::string_view op, const Value& left, const Value& right);
  Result<bool> contains(const Value& container, const Value& item);
  Result<Value> binary(std::string_view op, const Value& left, const Value& right);
  Error fail(std::string_view message) const;
  // str(); fails for functions and the like, and for what holds them: Python prints their address.
  Result<std::string> shown(const Value& value) const;
  const std::tm& now() const { return now_; }
  Value make_namespace(Dict attributes);

 private:
  friend struct CallableBody;
  enum class Flow : std::uint8_t { normal, broken, continued };
  struct Frame {
    std::int32_t parent = -1;
    std::uint64_t serial = 0;
    std::vector<std::pair<int, Value>> variables;
  };
  struct MacroBody;
  struct LoopBody;
  struct MethodBody;
  struct FunctionBody;
  struct CyclerBody;
  class Nested;

  Result<Flow> block(const Block& statements);
  Result<Flow> statement(const Stmt& stmt);
  Result<Flow> if_chain(const Stmt& stmt);
  Result<Flow> for_loop(const Stmt& stmt);
  // Whether the end of the body was reached in any iteration.
  Result<bool> loop_body(const Stmt& stmt, std::vector<Value> items);
  // Until `count` items of the loop, or all, are known.
  Status fill_loop(LoopBody& loop, std::size_t count);
  Status set_block(const Stmt& stmt);
  Result<Flow> with(const Stmt& stmt);
  Status call_block(const Stmt& stmt);
  // The body's text through the filters of the value, in a frame of its own.
  Result<Value> captured(const Stmt& stmt);
  Result<Value> through_filters(const Expr* chain, Value subject);
  Status assign(const Target& target, const Value& value);
  Status emit(std::string_view text);
  Status emit_value(const Value& value);

  Result<Value> eval(const Expr& expr);
  Result<Value> eval_inner(const Expr& expr);
  Result<Value> eval_name(const Expr& expr);
  Result<Value> eval_slice(const Expr& expr);
  Result<Value> eval_compare(const Expr& expr);
  Result<Value> eval_concat(const Expr& expr);
  Result<Value> eval_collection(const Expr& expr);
  Result<Value> eval_call(const Expr& expr);
  Result<Value> eval_sign(const Expr& expr);
  Result<Value> integer_op(std::string_view op, std::int64_t a, std::int64_t b) const;
  Result<Value> real_op(std::string_view op, double a, double b) const;
  Result<Value> repeat(const Value& sequence, std::int64_t count);
  Result<Arguments> arguments_of(const Expr& expr);

  Result<Value> call(const Value& callee, Arguments arguments);
  Result<Value> call_macro(const MacroBody& macro, Arguments arguments);
  Result<Value> call_function(const FunctionBody& function, const Arguments& arguments);
  Result<Value> call_loop_method(const LoopBody& loop, std::string_view name, const Arguments& arguments);
  Value make_macro(const Stmt& stmt);
  Result<Value> loop_attribute(LoopBody& loop, std::string_view name);
  Value lookup(int name_id);
  Value lookup_from(std::int32_t frame, int name_id);
  // What the template is given by that name, or the function of that name.
  Value given(int name_id);
  Value unknown(int name_id) const;
  // Gives the top frame the variables of its scope that are not assigned.
  void enter(const Scope& scope);

  std::size_t push_frame(std::int32_t parent);
  Frame& top() { return frames_.back(); }

  const TemplateTree& tree_;
  const std::tm& now_;
  RenderLimits limits_;
  std::vector<const Value*> variables_;  // by name id; null: not given
  std::vector<Frame> frames_;
  std::uint64_t next_serial_ = 0;
  std::string output_;
  std::string* out_ = &output_;
  std::deque<std::unique_ptr<Body>> owned_;
  std::int64_t steps_ = 0;
  std::size_t built_bytes_ = 0;
  int depth_ = 0;
  int line_ = 1;      // of what is evaluated
  int loop_id_ = -1;  // the name "loop"; -1: the template lacks it
};

// Whether str, dict or list has such a method here.
bool has_method(const Value& receiver, std::string_view name);
// Whether Python has such a method that would change the receiver, which the sandbox refuses.
bool is_mutator(const Value& receiver, std::string_view name);
Result<Value> call_method(Renderer& renderer, const Value& receiver, std::string_view name, const Arguments& arguments);

}  // namespace mstar::jinja
