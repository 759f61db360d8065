// Operators and what they join; parse_postfix.cc has what follows a value.
#include <algorithm>
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

}  // namespace mstar::jinja
