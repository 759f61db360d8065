#include <algorithm>
#include <array>
#include <initializer_list>

#include "mstar/text/jinja/token_reader.h"

namespace mstar::jinja {
namespace {

constexpr std::string_view kCompareSymbols[] = {"==", "!=", "<", "<=", ">", ">="};

std::string_view described(const Token& token) {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::data:
      return "text";
    case TokenKind::variable_end:
      return "}}";
    case TokenKind::block_end:
      return "%}";
    case TokenKind::variable_begin:
      return "{{";
    case TokenKind::block_begin:
      return "{%";
    case TokenKind::integer:
    case TokenKind::real:
      return "a number";
    case TokenKind::string:
      return "a string";
    default:
      return token.text;
  }
}

bool is_constant_name(std::string_view name) {
  constexpr std::string_view kNames[] = {"true", "false", "none", "True", "False", "None"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

template <class... Parts>
std::vector<ExprPtr> parts_of(Parts&&... parts) {
  std::vector<ExprPtr> out;
  (out.push_back(std::forward<Parts>(parts)), ...);
  return out;
}

}  // namespace

Error TokenReader::unexpected(std::string_view wanted) const {
  std::string message(wanted);
  message.append(", got ").append(described(current()));
  return template_error(current().line, message);
}

// Every node passes here once, when its parts are complete.
Result<ExprPtr> ExprParser::seal(ExprPtr node) const {
  const auto grow = [&](const ExprPtr& part) {
    if (part) node->depth = std::max(node->depth, part->depth + 1);
  };
  for (const ExprPtr& part : node->parts) grow(part);
  for (const ExprPtr& part : node->arguments) grow(part);
  for (const auto& [name, part] : node->named_arguments) grow(part);
  grow(node->more_arguments);
  grow(node->more_named_arguments);
  if (node->depth > kMaxTreeDepth) return template_error(node->line, "an expression nested too deeply");
  return node;
}

Result<ExprPtr> ExprParser::make(ExprKind kind, int line, std::vector<ExprPtr> parts, std::string text) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  node->text = std::move(text);
  node->parts = std::move(parts);
  return seal(std::move(node));
}

Result<ExprPtr> ExprParser::constant(Value value, int line) const {
  auto node = std::make_unique<Expr>();
  node->line = line;
  node->constant = std::move(value);
  return node;
}

Result<ExprPtr> ExprParser::expression(bool with_condition) {
  const TokenReader::Level level(in_);
  if (level.too_deep()) return template_error(in_.current().line, "an expression nested too deeply");
  int line = in_.current().line;
  MSTAR_TRY_ASSIGN(ExprPtr node, logical_or());
  while (with_condition && in_.skip_name("if")) {
    MSTAR_TRY_ASSIGN(ExprPtr condition, logical_or());
    ExprPtr otherwise;
    if (in_.skip_name("else")) {
      MSTAR_TRY_ASSIGN(otherwise, expression());
    }
    MSTAR_TRY_ASSIGN(
        node, make(ExprKind::condition, line, parts_of(std::move(condition), std::move(node), std::move(otherwise))));
    line = in_.current().line;
  }
  return node;
}

Result<ExprPtr> ExprParser::logical_or() {
  MSTAR_TRY_ASSIGN(ExprPtr node, logical_and());
  while (in_.is_name("or")) {
    const int line = in_.take().line;
    MSTAR_TRY_ASSIGN(ExprPtr right, logical_and());
    MSTAR_TRY_ASSIGN(node, make(ExprKind::logical_or, line, parts_of(std::move(node), std::move(right))));
  }
  return node;
}

Result<ExprPtr> ExprParser::logical_and() {
  MSTAR_TRY_ASSIGN(ExprPtr node, logical_not());
  while (in_.is_name("and")) {
    const int line = in_.take().line;
    MSTAR_TRY_ASSIGN(ExprPtr right, logical_not());
    MSTAR_TRY_ASSIGN(node, make(ExprKind::logical_and, line, parts_of(std::move(node), std::move(right))));
  }
  return node;
}

Result<ExprPtr> ExprParser::logical_not() {
  std::vector<int> lines;
  while (in_.is_name("not")) lines.push_back(in_.take().line);
  MSTAR_TRY_ASSIGN(ExprPtr node, compare());
  for (; !lines.empty(); lines.pop_back()) {
    MSTAR_TRY_ASSIGN(node, make(ExprKind::logical_not, lines.back(), parts_of(std::move(node))));
  }
  return node;
}

Result<ExprPtr> ExprParser::compare() {
  const int line = in_.current().line;
  MSTAR_TRY_ASSIGN(ExprPtr node, sum());
  auto chain = std::make_unique<Expr>();
  while (true) {
    const bool symbol = in_.is(TokenKind::symbol) && std::find(std::begin(kCompareSymbols), std::end(kCompareSymbols),
                                                               in_.current().text) != std::end(kCompareSymbols);
    const bool not_in = in_.is_name("not") && in_.ahead().kind == TokenKind::name && in_.ahead().text == "in";
    if (!symbol && !not_in && !in_.is_name("in")) break;
    chain->operators.push_back(not_in ? "not in" : in_.current().text);
    in_.take();
    if (not_in) in_.take();
    MSTAR_TRY_ASSIGN(ExprPtr operand, sum());
    chain->parts.push_back(std::move(operand));
  }
  if (chain->operators.empty()) return node;
  chain->kind = ExprKind::compare;
  chain->line = line;
  chain->parts.insert(chain->parts.begin(), std::move(node));
  return seal(std::move(chain));
}

Result<ExprPtr> ExprParser::left_chain(std::initializer_list<std::string_view> symbols, Rule operand) {
  MSTAR_TRY_ASSIGN(ExprPtr node, (this->*operand)());
  while (in_.is(TokenKind::symbol) && std::find(symbols.begin(), symbols.end(), in_.current().text) != symbols.end()) {
    const Token& token = in_.take();
    MSTAR_TRY_ASSIGN(ExprPtr right, (this->*operand)());
    MSTAR_TRY_ASSIGN(node, make(ExprKind::binary, token.line, parts_of(std::move(node), std::move(right)), token.text));
  }
  return node;
}

Result<ExprPtr> ExprParser::sum() { return left_chain({"+", "-"}, &ExprParser::concat); }
Result<ExprPtr> ExprParser::product() { return left_chain({"*", "/", "//", "%"}, &ExprParser::power); }
Result<ExprPtr> ExprParser::power() { return left_chain({"**"}, &ExprParser::unary_with_filter); }

Result<ExprPtr> ExprParser::concat() {
  const int line = in_.current().line;
  MSTAR_TRY_ASSIGN(ExprPtr node, product());
  if (!in_.is_symbol("~")) return node;
  std::vector<ExprPtr> parts = parts_of(std::move(node));
  while (in_.skip_symbol("~")) {
    MSTAR_TRY_ASSIGN(ExprPtr part, product());
    parts.push_back(std::move(part));
  }
  return make(ExprKind::concat, line, std::move(parts));
}

Result<ExprPtr> ExprParser::unary(bool with_filter) {
  // A sign binds the operand and its postfixes; filters come after all signs.
  std::vector<std::pair<bool, int>> signs;
  while (in_.is_symbol("-") || in_.is_symbol("+")) {
    const bool minus = in_.current().text == "-";
    signs.emplace_back(minus, in_.take().line);
  }
  MSTAR_TRY_ASSIGN(ExprPtr node, primary());
  MSTAR_TRY_ASSIGN(node, postfix(std::move(node)));
  for (; !signs.empty(); signs.pop_back()) {
    MSTAR_TRY_ASSIGN(node, make(signs.back().first ? ExprKind::negate : ExprKind::positive, signs.back().second,
                                parts_of(std::move(node))));
  }
  return with_filter ? filter_tail(std::move(node)) : Result<ExprPtr>(std::move(node));
}

Result<ExprPtr> ExprParser::name_or_constant() {
  const Token& token = in_.take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return constant(Value::boolean(true), token.line);
  if (name == "false" || name == "False") return constant(Value::boolean(false), token.line);
  if (name == "none" || name == "None") return constant(Value::none(), token.line);
  auto node = std::make_unique<Expr>();
  node->kind = ExprKind::name;
  node->line = token.line;
  node->name_id = in_.name_id(name);
  return node;
}

Result<ExprPtr> ExprParser::primary() {
  const Token& token = in_.current();
  switch (token.kind) {
    case TokenKind::name:
      return name_or_constant();
    case TokenKind::string: {
      std::string text;
      while (in_.is(TokenKind::string)) text.append(in_.take().text);
      return constant(Value::string(std::move(text)), token.line);
    }
    case TokenKind::integer:
      return constant(Value::integer(in_.take().integer), token.line);
    case TokenKind::real:
      return constant(Value::real(in_.take().real), token.line);
    default:
      break;
  }
  if (in_.skip_symbol("(")) {
    TupleRules rules;
    rules.parentheses = true;
    MSTAR_TRY_ASSIGN(ExprPtr node, tuple(rules));
    MSTAR_TRY(in_.expect_symbol(")"));
    return node;
  }
  if (in_.is_symbol("[")) return list();
  if (in_.is_symbol("{")) return dict();
  return in_.unexpected("expected an expression");
}

Result<ExprPtr> ExprParser::list() {
  const int line = in_.take().line;
  std::vector<ExprPtr> parts;
  while (!in_.is_symbol("]")) {
    if (!parts.empty()) MSTAR_TRY(in_.expect_symbol(","));
    if (in_.is_symbol("]")) break;
    MSTAR_TRY_ASSIGN(ExprPtr part, expression());
    parts.push_back(std::move(part));
  }
  MSTAR_TRY(in_.expect_symbol("]"));
  return make(ExprKind::list, line, std::move(parts));
}

Result<ExprPtr> ExprParser::dict() {
  const int line = in_.take().line;
  std::vector<ExprPtr> parts;
  while (!in_.is_symbol("}")) {
    if (!parts.empty()) MSTAR_TRY(in_.expect_symbol(","));
    if (in_.is_symbol("}")) break;
    MSTAR_TRY_ASSIGN(ExprPtr key, expression());
    MSTAR_TRY(in_.expect_symbol(":"));
    MSTAR_TRY_ASSIGN(ExprPtr value, expression());
    parts.push_back(std::move(key));
    parts.push_back(std::move(value));
  }
  MSTAR_TRY(in_.expect_symbol("}"));
  return make(ExprKind::dict, line, std::move(parts));
}

bool ExprParser::at_tuple_end(std::string_view end_name) const {
  return in_.is(TokenKind::variable_end) || in_.is(TokenKind::block_end) || in_.is_symbol(")") ||
         (!end_name.empty() && in_.is_name(end_name));
}

Result<ExprPtr> ExprParser::tuple(TupleRules rules) {
  const int line = in_.current().line;
  std::vector<ExprPtr> parts;
  bool is_tuple = false;
  while (!at_tuple_end(rules.end_name)) {
    MSTAR_TRY_ASSIGN(ExprPtr part, expression(rules.condition));
    parts.push_back(std::move(part));
    if (!in_.skip_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !parts.empty()) return std::move(parts.front());
  if (!is_tuple && !rules.parentheses) return in_.unexpected("expected an expression");
  return make(ExprKind::tuple, line, std::move(parts));
}

Result<ExprPtr> ExprParser::postfix(ExprPtr node) {
  while (true) {
    if (in_.is_symbol(".") || in_.is_symbol("[")) {
      MSTAR_TRY_ASSIGN(node, subscript(std::move(node)));
    } else if (in_.is_symbol("(")) {
      MSTAR_TRY_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExprParser::filter_tail(ExprPtr node) {
  while (true) {
    if (in_.is_symbol("|")) {
      MSTAR_TRY_ASSIGN(node, filters(std::move(node), false));
    } else if (in_.is_name("is")) {
      MSTAR_TRY_ASSIGN(node, test(std::move(node)));
    } else if (in_.is_symbol("(")) {
      MSTAR_TRY_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExprParser::subscript(ExprPtr node) {
  const int line = in_.current().line;
  if (in_.skip_symbol(".")) {
    const Token& token = in_.take();
    if (token.kind == TokenKind::name) return make(ExprKind::attribute, line, parts_of(std::move(node)), token.text);
    if (token.kind != TokenKind::integer) return template_error(token.line, "expected a name or a number after '.'");
    MSTAR_TRY_ASSIGN(ExprPtr index, constant(Value::integer(token.integer), token.line));
    return make(ExprKind::item, line, parts_of(std::move(node), std::move(index)));
  }
  in_.take();
  MSTAR_TRY_ASSIGN(ExprPtr out, subscribed(std::move(node), line));
  if (in_.is_symbol(",")) return template_error(line, "a subscript of more than one value is not supported");
  MSTAR_TRY(in_.expect_symbol("]"));
  return out;
}

Result<ExprPtr> ExprParser::subscribed(ExprPtr node, int line) {
  std::array<ExprPtr, 3> bounds;
  if (!in_.is_symbol(":")) {
    MSTAR_TRY_ASSIGN(bounds[0], expression());
    if (!in_.is_symbol(":")) return make(ExprKind::item, line, parts_of(std::move(node), std::move(bounds[0])));
  }
  for (std::size_t i = 1; i < 3 && in_.skip_symbol(":"); ++i) {
    if (in_.is_symbol(":") || in_.is_symbol("]") || in_.is_symbol(",")) continue;
    MSTAR_TRY_ASSIGN(bounds[i], expression());
  }
  return make(ExprKind::slice, line,
              parts_of(std::move(node), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])));
}

Result<ExprPtr> ExprParser::call(ExprPtr node) {
  auto out = std::make_unique<Expr>();
  out->kind = ExprKind::call;
  out->line = in_.current().line;
  out->parts.push_back(std::move(node));
  MSTAR_TRY(arguments(*out));
  return seal(std::move(out));
}

Status ExprParser::argument(Expr& node) {
  const Error wrong = template_error(node.line, "invalid order of arguments");
  if (in_.skip_symbol("*")) {
    if (node.more_arguments || node.more_named_arguments) return wrong;
    MSTAR_TRY_ASSIGN(node.more_arguments, expression());
    return {};
  }
  if (in_.skip_symbol("**")) {
    if (node.more_named_arguments) return wrong;
    MSTAR_TRY_ASSIGN(node.more_named_arguments, expression());
    return {};
  }
  if (in_.is(TokenKind::name) && in_.ahead().kind == TokenKind::symbol && in_.ahead().text == "=") {
    if (node.more_named_arguments) return wrong;
    std::string name = in_.take().text;
    in_.take();
    for (const auto& [other, value] : node.named_arguments) {
      if (other == name) return template_error(node.line, "the argument " + name + " comes twice");
    }
    MSTAR_TRY_ASSIGN(ExprPtr value, expression());
    node.named_arguments.emplace_back(std::move(name), std::move(value));
    return {};
  }
  if (node.more_arguments || node.more_named_arguments || !node.named_arguments.empty()) return wrong;
  MSTAR_TRY_ASSIGN(ExprPtr value, expression());
  node.arguments.push_back(std::move(value));
  return {};
}

Status ExprParser::arguments(Expr& node) {
  MSTAR_TRY(in_.expect_symbol("("));
  while (!in_.is_symbol(")")) {
    MSTAR_TRY(argument(node));
    if (!in_.is_symbol(")")) MSTAR_TRY(in_.expect_symbol(","));
  }
  in_.take();
  return {};
}

Result<std::string> ExprParser::dotted_name() {
  if (!in_.is(TokenKind::name)) return in_.unexpected("expected a name");
  std::string name = in_.take().text;
  while (in_.skip_symbol(".")) {
    if (!in_.is(TokenKind::name)) return in_.unexpected("expected a name");
    name.append(".").append(in_.take().text);
  }
  return name;
}

Result<ExprPtr> ExprParser::filters(ExprPtr subject, bool inline_start) {
  while (inline_start || in_.is_symbol("|")) {
    if (!inline_start) in_.take();
    inline_start = false;
    auto node = std::make_unique<Expr>();
    node->kind = ExprKind::filter;
    node->line = in_.current().line;
    MSTAR_TRY_ASSIGN(node->text, dotted_name());
    node->parts.push_back(std::move(subject));
    if (in_.is_symbol("(")) MSTAR_TRY(arguments(*node));
    MSTAR_TRY_ASSIGN(subject, seal(std::move(node)));
  }
  return subject;
}

Result<ExprPtr> ExprParser::test(ExprPtr node) {
  const int line = in_.take().line;
  const bool negated = in_.skip_name("not");
  auto out = std::make_unique<Expr>();
  out->kind = ExprKind::test;
  out->line = line;
  MSTAR_TRY_ASSIGN(out->text, dotted_name());
  out->parts.push_back(std::move(node));
  const bool value_follows = in_.is(TokenKind::name) || in_.is(TokenKind::string) || in_.is(TokenKind::integer) ||
                             in_.is(TokenKind::real) || in_.is_symbol("[") || in_.is_symbol("{");
  if (in_.is_symbol("(")) {
    MSTAR_TRY(arguments(*out));
  } else if (in_.is_name("is")) {
    return template_error(line, "tests can't be chained");
  } else if (value_follows && !in_.is_name("else") && !in_.is_name("or") && !in_.is_name("and")) {
    MSTAR_TRY_ASSIGN(ExprPtr value, primary());
    MSTAR_TRY_ASSIGN(value, postfix(std::move(value)));
    out->arguments.push_back(std::move(value));
  }
  MSTAR_TRY_ASSIGN(ExprPtr sealed, seal(std::move(out)));
  if (!negated) return sealed;
  return make(ExprKind::logical_not, line, parts_of(std::move(sealed)));
}

Result<int> ExprParser::plain_name() {
  if (!in_.is(TokenKind::name) || is_constant_name(in_.current().text)) return in_.unexpected("expected a name");
  return in_.name_id(in_.take().text);
}

Result<Target> ExprParser::target(bool with_tuple, bool with_namespace, std::string_view end_name) {
  const TokenReader::Level level(in_);
  if (level.too_deep()) return template_error(in_.current().line, "a target nested too deeply");
  std::vector<Target> parts;
  bool is_tuple = false;
  while (parts.empty() || !at_tuple_end(end_name)) {
    Target part;
    if (in_.skip_symbol("(")) {
      MSTAR_TRY_ASSIGN(part, target(true, false, {}));
      MSTAR_TRY(in_.expect_symbol(")"));
    } else {
      MSTAR_TRY_ASSIGN(part.name_id, plain_name());
      if (with_namespace && in_.skip_symbol(".")) {
        if (!in_.is(TokenKind::name)) return in_.unexpected("expected a name");
        part.attribute = in_.take().text;
      }
    }
    parts.push_back(std::move(part));
    if (!with_tuple || !in_.skip_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) return std::move(parts.front());
  Target out;
  out.is_tuple = true;
  out.parts = std::move(parts);
  return out;
}

}  // namespace mstar::jinja
