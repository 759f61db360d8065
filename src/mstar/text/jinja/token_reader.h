// The tokens of a template as its parsers walk them.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/text/jinja/ast.h"
#include "mstar/text/jinja/lexer.h"

namespace mstar::jinja {

// The deepest tree, and the deepest nesting of statements.
inline constexpr int kMaxTreeDepth = 200;

class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_symbol(std::string_view text) const { return is(TokenKind::symbol) && current().text == text; }
  bool is_name(std::string_view text) const { return is(TokenKind::name) && current().text == text; }
  bool skip_symbol(std::string_view text) {
    const bool found = is_symbol(text);
    if (found) take();
    return found;
  }
  bool skip_name(std::string_view text) {
    const bool found = is_name(text);
    if (found) take();
    return found;
  }
  Status expect_symbol(std::string_view text) {
    if (!skip_symbol(text)) return unexpected(std::string("expected '").append(text).append("'"));
    return {};
  }
  Error unexpected(std::string_view wanted) const;

  // The number that stands for a variable's name in this template.
  int name_id(const std::string& name) {
    const auto [place, fresh] = ids_.emplace(name, static_cast<int>(names_.size()));
    if (fresh) names_.push_back(name);
    return place->second;
  }
  std::vector<std::string> take_names() { return std::move(names_); }

  // Counts how deep the parsers call each other.
  class Level {
   public:
    explicit Level(TokenReader& reader) : reader_(reader) { ++reader_.level_; }
    ~Level() { --reader_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    bool too_deep() const { return reader_.level_ > kMaxTreeDepth; }

   private:
    TokenReader& reader_;
  };

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> ids_;
};

// The parts of an Expr; each may be null.
template <class... Parts>
std::vector<ExprPtr> parts_of(Parts&&... parts) {
  std::vector<ExprPtr> out;
  (out.push_back(std::forward<Parts>(parts)), ...);
  return out;
}

// How a tuple without brackets may be read.
struct TupleRules {
  bool condition = true;           // `a if b else c` within
  bool parentheses = false;        // so that an empty one is right
  std::string_view end_name = {};  // a name that ends it
};

// jinja2's expression grammar.
class ExprParser {
 public:
  explicit ExprParser(TokenReader& in) : in_(in) {}
  Result<ExprPtr> expression(bool with_condition = true);
  Result<ExprPtr> tuple(TupleRules rules = {});
  // One or more "| name(...)" after `subject`, which may be null. `inline_start`: the first name has no "|".
  Result<ExprPtr> filters(ExprPtr subject, bool inline_start);
  Result<Target> target(bool with_tuple, bool with_namespace, std::string_view end_name);
  Result<int> plain_name();

 private:
  using Rule = Result<ExprPtr> (ExprParser::*)();
  Result<ExprPtr> make(ExprKind kind, int line, std::vector<ExprPtr> parts = {}, std::string text = {}) const;
  Result<ExprPtr> seal(ExprPtr node) const;
  Result<ExprPtr> logical_or();
  Result<ExprPtr> logical_and();
  Result<ExprPtr> logical_not();
  Result<ExprPtr> compare();
  Result<ExprPtr> sum();
  Result<ExprPtr> concat();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary(bool with_filter);
  Result<ExprPtr> unary_with_filter() { return unary(true); }
  Result<ExprPtr> primary();
  Result<ExprPtr> name_or_constant();
  Result<ExprPtr> list();
  Result<ExprPtr> dict();
  Result<ExprPtr> postfix(ExprPtr node);
  Result<ExprPtr> filter_tail(ExprPtr node);
  Result<ExprPtr> subscript(ExprPtr node);
  Result<ExprPtr> subscribed(ExprPtr node, int line);
  Result<ExprPtr> test(ExprPtr node);
  Result<ExprPtr> call(ExprPtr node);
  Result<ExprPtr> constant(Value value, int line) const;
  Result<ExprPtr> left_chain(std::initializer_list<std::string_view> symbols, Rule operand);
  Status arguments(Expr& node);
  Status argument(Expr& node);
  Result<std::string> dotted_name();
  bool at_tuple_end(std::string_view end_name) const;

  TokenReader& in_;
};

}  // namespace mstar::jinja
