// What follows a value: subscripts, calls, filters and tests; and what is assigned to.
#include <algorithm>
#include <array>

#include "mstar/text/jinja/token_reader.h"

namespace mstar::jinja {
namespace {

bool is_constant_name(std::string_view name) {
  constexpr std::string_view kNames[] = {"true", "false", "none", "True", "False", "None"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

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
