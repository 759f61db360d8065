// The tree of a parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mstar/text/jinja/value.h"

namespace mstar::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : std::uint8_t {
  constant,
  name,       // name_id
  attribute,  // parts[0].text
  item,       // parts[0][parts[1]]
  slice,      // parts[0][parts[1]:parts[2]:parts[3]]; each of the three may be null
  call,       // parts[0](arguments)
  filter,     // parts[0] | text(arguments); parts[0] is null at the head of a filter block
  test,       // parts[0] is text(arguments)
  negate,
  positive,
  logical_not,
  binary,  // parts[0] text parts[1]
  logical_and,
  logical_or,
  compare,    // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  concat,     // the texts of all parts
  condition,  // parts[0] ? parts[1] : parts[2], which may be null
  list,
  tuple,
  dict,  // key, value, key, value, ...
};

struct Expr {
  ExprKind kind = ExprKind::constant;
  int line = 1;
  int name_id = -1;
  int depth = 1;  // of the tree below
  std::string text;
  Value constant;
  std::vector<ExprPtr> parts;
  std::vector<std::string> operators;
  // Of calls, filters and tests.
  std::vector<ExprPtr> arguments;
  std::vector<std::pair<std::string, ExprPtr>> named_arguments;
  ExprPtr more_arguments;        // *x
  ExprPtr more_named_arguments;  // **x
};

// What a value is assigned to: a name, a namespace's attribute, or a tuple of those.
struct Target {
  int name_id = -1;
  std::string attribute;      // of the namespace name_id, when not empty
  std::vector<Target> parts;  // of a tuple
  bool is_tuple = false;
};

// A variable that a frame has of its own, and what it holds when the frame is entered.
struct ScopeLoad {
  enum class From : std::uint8_t {
    given,  // what the template is given by that name
    outer,  // a copy of the outer frame's
    undefined,
  };
  int name_id = -1;
  From from = From::undefined;
};
using Scope = std::vector<ScopeLoad>;

struct Stmt;
using Block = std::vector<Stmt>;

enum class StmtKind : std::uint8_t {
  data,    // text
  output,  // value
  if_,     // branches; body is the else part
  for_,    // target in value, filtered by condition: body, else_body
  set,
  set_block,  // target = body, through value (a chain of filters) unless null
  with,       // assignments, body
  macro,
  call_block,  // value is the call, signature and body the caller
  filter_block,
  scope,  // body, in a frame of its own: a caller without arguments
  break_,
  continue_,
};

struct Signature {
  std::vector<int> names;
  std::vector<ExprPtr> defaults;  // of the last names
  std::string title;              // for messages
  // Which of these the body reads; each is an argument then. Else -1.
  int caller_id = -1, varargs_id = -1, kwargs_id = -1;
};

struct Branch;

struct Stmt {
  StmtKind kind = StmtKind::data;
  int line = 1;
  std::string text;
  ExprPtr value;
  ExprPtr condition;
  Target target;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::vector<Branch> branches;
  Block body;
  Block else_body;
  std::unique_ptr<Signature> signature;
  // Of the frames of body, else_body and a loop's condition.
  Scope scope, else_scope, condition_scope;
  bool uses_loop = false;  // a loop's body reads the variable `loop`
};

struct Branch {
  ExprPtr condition;
  Block body;
};

struct TemplateTree {
  Block body;
  std::vector<std::string> names;  // by name_id
  Scope scope;                     // of the outermost frame
};

}  // namespace mstar::jinja
