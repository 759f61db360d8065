#include "mstar/text/jinja/parser.h"

#include "mstar/text/jinja/scopes.h"
#include "mstar/text/jinja/token_reader.h"

namespace mstar::jinja {
namespace {

class BlockParser {
 public:
  explicit BlockParser(std::vector<Token> tokens) : in_(std::move(tokens)), expr_(in_) {}

  Result<TemplateTree> run() {
    TemplateTree tree;
    MSTAR_TRY(block({}, tree.body));
    tree.names = in_.take_names();
    MSTAR_TRY(resolve_scopes(tree));
    return tree;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Reads up to a tag that begins with one of `ends`; that name is then current. No ends: up to the end of the source.
  Status block(Ends ends, Block& out) {
    const TokenReader::Level level(in_);
    if (level.too_deep()) return template_error(in_.current().line, "statements nested too deeply");
    while (!in_.is(TokenKind::end)) {
      if (in_.is(TokenKind::data)) {
        Stmt stmt = start(StmtKind::data);
        stmt.text = in_.take().text;
        out.push_back(std::move(stmt));
      } else if (in_.is(TokenKind::variable_begin)) {
        in_.take();
        Stmt stmt = start(StmtKind::output);
        MSTAR_TRY_ASSIGN(stmt.value, expr_.tuple());
        if (!in_.is(TokenKind::variable_end)) return in_.unexpected("expected the end of the expression");
        in_.take();
        out.push_back(std::move(stmt));
      } else {
        in_.take();  // block_begin
        for (const std::string_view end : ends) {
          if (in_.is_name(end)) return {};
        }
        MSTAR_TRY(statement(out));
        MSTAR_TRY(tag_end());
      }
    }
    if (ends.size() == 0) return {};
    return template_error(in_.current().line,
                          std::string("expected ") + std::string(*(ends.end() - 1)) + ", got the end of the template");
  }

  Stmt start(StmtKind kind) const {
    Stmt stmt;
    stmt.kind = kind;
    stmt.line = in_.current().line;
    return stmt;
  }
  Status tag_end() {
    if (!in_.is(TokenKind::block_end)) return in_.unexpected("expected the end of the tag");
    in_.take();
    return {};
  }
  // The body after a tag's head; its end name is current afterwards.
  Status body(Ends ends, Block& out) {
    in_.skip_symbol(":");
    MSTAR_TRY(tag_end());
    return block(ends, out);
  }
  // The same, with one end, which is taken.
  Status whole_body(std::string_view end, Block& out) {
    MSTAR_TRY(body({end}, out));
    in_.take();
    return {};
  }

  Status statement(Block& out) {
    if (!in_.is(TokenKind::name)) return in_.unexpected("expected a tag name");
    struct Rule {
      std::string_view name;
      Status (BlockParser::*read)(Stmt&);
      StmtKind kind;
    };
    static constexpr Rule kRules[] = {
        {"for", &BlockParser::for_loop, StmtKind::for_},
        {"if", &BlockParser::if_chain, StmtKind::if_},
        {"set", &BlockParser::set, StmtKind::set},
        {"with", &BlockParser::with, StmtKind::with},
        {"macro", &BlockParser::macro, StmtKind::macro},
        {"call", &BlockParser::call_block, StmtKind::call_block},
        {"filter", &BlockParser::filter_block, StmtKind::filter_block},
        {"generation", &BlockParser::generation, StmtKind::scope},
        {"print", &BlockParser::print, StmtKind::output},
        {"break", &BlockParser::jump, StmtKind::break_},
        {"continue", &BlockParser::jump, StmtKind::continue_},
    };
    for (const Rule& rule : kRules) {
      if (!in_.is_name(rule.name)) continue;
      Stmt stmt = start(rule.kind);
      in_.take();
      MSTAR_TRY((this->*rule.read)(stmt));
      out.push_back(std::move(stmt));
      return {};
    }
    return template_error(in_.current().line, "the tag '" + in_.current().text + "' is unknown or not supported");
  }

  Status for_loop(Stmt& stmt) {
    MSTAR_TRY_ASSIGN(stmt.target, expr_.target(true, false, "in"));
    if (!in_.skip_name("in")) return in_.unexpected("expected 'in'");
    TupleRules rules;
    rules.condition = false;
    rules.end_name = "recursive";
    MSTAR_TRY_ASSIGN(stmt.value, expr_.tuple(rules));
    if (in_.skip_name("if")) {
      MSTAR_TRY_ASSIGN(stmt.condition, expr_.expression());
    }
    if (in_.is_name("recursive")) return template_error(stmt.line, "recursive loops are not supported");
    ++loop_depth_;
    MSTAR_TRY(body({"endfor", "else"}, stmt.body));
    --loop_depth_;
    if (in_.take().text == "endfor") return {};
    return whole_body("endfor", stmt.else_body);
  }

  Status if_chain(Stmt& stmt) {
    while (true) {
      Branch branch;
      TupleRules rules;
      rules.condition = false;
      MSTAR_TRY_ASSIGN(branch.condition, expr_.tuple(rules));
      MSTAR_TRY(body({"elif", "else", "endif"}, branch.body));
      stmt.branches.push_back(std::move(branch));
      const std::string end = in_.take().text;
      if (end == "endif") return {};
      if (end == "else") return whole_body("endif", stmt.body);
    }
  }

  Status set(Stmt& stmt) {
    MSTAR_TRY_ASSIGN(stmt.target, expr_.target(true, true, {}));
    if (in_.skip_symbol("=")) {
      MSTAR_TRY_ASSIGN(stmt.value, expr_.tuple());
      return {};
    }
    stmt.kind = StmtKind::set_block;
    if (in_.is_symbol("|")) {
      MSTAR_TRY_ASSIGN(stmt.value, expr_.filters(nullptr, false));
    }
    return scoped_body("endset", stmt);
  }

  // A body that jumps must not leave.
  Status scoped_body(std::string_view end, Stmt& stmt) {
    const int outer = loop_depth_;
    loop_depth_ = 0;
    MSTAR_TRY(whole_body(end, stmt.body));
    loop_depth_ = outer;
    return {};
  }

  Status with(Stmt& stmt) {
    while (!in_.is(TokenKind::block_end)) {
      if (!stmt.assignments.empty()) MSTAR_TRY(in_.expect_symbol(","));
      MSTAR_TRY_ASSIGN(Target target, expr_.target(false, false, {}));
      MSTAR_TRY(in_.expect_symbol("="));
      MSTAR_TRY_ASSIGN(ExprPtr value, expr_.expression());
      stmt.assignments.emplace_back(std::move(target), std::move(value));
    }
    return whole_body("endwith", stmt.body);
  }

  Status signature(Signature& out) {
    MSTAR_TRY(in_.expect_symbol("("));
    while (!in_.is_symbol(")")) {
      if (!out.names.empty()) MSTAR_TRY(in_.expect_symbol(","));
      MSTAR_TRY_ASSIGN(const int name, expr_.plain_name());
      out.names.push_back(name);
      if (in_.skip_symbol("=")) {
        MSTAR_TRY_ASSIGN(ExprPtr value, expr_.expression());
        out.defaults.push_back(std::move(value));
      } else if (!out.defaults.empty()) {
        return template_error(in_.current().line, "an argument without a default follows one that has it");
      }
    }
    in_.take();
    return {};
  }

  Status macro(Stmt& stmt) {
    stmt.signature = std::make_unique<Signature>();
    if (in_.is(TokenKind::name)) stmt.signature->title = in_.current().text;
    MSTAR_TRY_ASSIGN(stmt.target.name_id, expr_.plain_name());
    MSTAR_TRY(signature(*stmt.signature));
    return scoped_body("endmacro", stmt);
  }

  Status call_block(Stmt& stmt) {
    stmt.signature = std::make_unique<Signature>();
    stmt.signature->title = "caller";
    if (in_.is_symbol("(")) MSTAR_TRY(signature(*stmt.signature));
    MSTAR_TRY_ASSIGN(stmt.value, expr_.expression());
    if (stmt.value->kind != ExprKind::call) return template_error(stmt.line, "expected a call");
    return scoped_body("endcall", stmt);
  }

  Status filter_block(Stmt& stmt) {
    MSTAR_TRY_ASSIGN(stmt.value, expr_.filters(nullptr, true));
    return scoped_body("endfilter", stmt);
  }
  Status generation(Stmt& stmt) {
    stmt.signature = std::make_unique<Signature>();
    stmt.signature->title = "generation";
    return scoped_body("endgeneration", stmt);
  }
  Status print(Stmt& stmt) {
    MSTAR_TRY_ASSIGN(stmt.value, expr_.expression());
    return {};
  }
  Status jump(Stmt& stmt) {
    if (loop_depth_ == 0)
      return template_error(stmt.line,
                            "break or continue outside of a loop, or out of a block in it, is not supported");
    return {};
  }

  TokenReader in_;
  ExprParser expr_;
  int loop_depth_ = 0;
};

}  // namespace

Result<TemplateTree> parse_template(std::string_view source) {
  MSTAR_TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return BlockParser(std::move(tokens)).run();
}

}  // namespace mstar::jinja
