// jinja2's idtracking.py, which has the same rules under the names load, store, declare_parameter and branch_update.
#include "mstar/text/jinja/scopes.h"

#include <algorithm>
#include <map>
#include <set>

#include "mstar/text/jinja/lexer.h"

namespace mstar::jinja {
namespace {

// Where a frame's variable gets its first value from. A parameter is assigned when the frame is entered.
enum class Source : std::uint8_t { parameter, given, outer, undefined };

struct Symbols {
  const Symbols* parent = nullptr;
  std::map<int, Source> sources;
  std::set<int> stores;

  bool knows(int name) const { return sources.contains(name) || (parent && parent->knows(name)); }
  bool outer_knows(int name) const { return parent && parent->knows(name); }
  void load(int name) {
    if (!knows(name)) sources[name] = Source::given;
  }
  void store(int name) {
    stores.insert(name);
    if (!sources.contains(name)) sources[name] = outer_knows(name) ? Source::outer : Source::undefined;
  }
  void declare_parameter(int name) {
    stores.insert(name);
    sources[name] = Source::parameter;
  }
  // What is set in one branch only may also come from where it would without the branch.
  void take_branches(const std::vector<Symbols>& branches) {
    std::set<int> fresh;
    for (const Symbols& branch : branches) {
      for (const int name : branch.stores) {
        if (!stores.contains(name)) fresh.insert(name);
      }
    }
    for (const Symbols& branch : branches) {
      for (const auto& [name, source] : branch.sources) sources[name] = source;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const int name : fresh) sources[name] = outer_knows(name) ? Source::outer : Source::given;
  }
  Scope loads() const {
    Scope out;
    for (const auto& [name, source] : sources) {
      if (source == Source::parameter) continue;
      out.push_back({name, source == Source::given   ? ScopeLoad::From::given
                           : source == Source::outer ? ScopeLoad::From::outer
                                                     : ScopeLoad::From::undefined});
    }
    return out;
  }
};

// Calls `take` with the id of every name that the expression reads.
template <class Take>
void each_name(const Expr* expr, const Take& take) {
  if (!expr) return;
  if (expr->kind == ExprKind::name) take(expr->name_id);
  for (const ExprPtr& part : expr->parts) each_name(part.get(), take);
  for (const ExprPtr& argument : expr->arguments) each_name(argument.get(), take);
  for (const auto& [name, argument] : expr->named_arguments) each_name(argument.get(), take);
  each_name(expr->more_arguments.get(), take);
  each_name(expr->more_named_arguments.get(), take);
}

void load_all(const Expr* expr, Symbols& symbols) {
  each_name(expr, [&](int name) { symbols.load(name); });
}

void store_target(const Target& target, Symbols& symbols) {
  if (target.is_tuple) {
    for (const Target& part : target.parts) store_target(part, symbols);
  } else if (!target.attribute.empty()) {
    symbols.load(target.name_id);
  } else {
    symbols.store(target.name_id);
  }
}

void declare_target(const Target& target, Symbols& symbols) {
  for (const Target& part : target.parts) declare_target(part, symbols);
  if (!target.is_tuple) symbols.declare_parameter(target.name_id);
}

// Whether statements read a name before they set it, in the order of the source and through all frames.
class UseFinder {
 public:
  explicit UseFinder(int name) : name_(name) {}
  bool used_in(const Block& block) {
    visit(block);
    return used_;
  }
  bool stored() const { return stored_; }
  bool stores(const Target& target) {
    visit(target);
    return stored_;
  }

 private:
  void visit(const Expr* expr) {
    each_name(expr, [&](int name) { used_ = used_ || (name == name_ && !stored_); });
  }
  void store(int name) { stored_ = stored_ || name == name_; }
  void visit(const Target& target) {
    for (const Target& part : target.parts) visit(part);
    if (!target.is_tuple && target.attribute.empty()) store(target.name_id);
  }
  void visit(const Signature& signature) {
    for (const int name : signature.names) store(name);
    for (const ExprPtr& value : signature.defaults) visit(value.get());
  }
  void visit(const Block& block) {
    for (const Stmt& stmt : block) visit(stmt);
  }
  void visit(const Stmt& stmt) {
    if (stmt.kind == StmtKind::filter_block) {
      visit(stmt.body);
      return visit(stmt.value.get());
    }
    if (stmt.kind == StmtKind::call_block) visit(stmt.value.get());
    if (stmt.kind != StmtKind::macro && (stmt.target.is_tuple || stmt.target.name_id >= 0)) visit(stmt.target);
    for (const auto& [target, value] : stmt.assignments) visit(target);
    for (const auto& [target, value] : stmt.assignments) visit(value.get());
    if (stmt.signature) visit(*stmt.signature);
    if (stmt.kind != StmtKind::call_block) visit(stmt.value.get());
    for (const Branch& branch : stmt.branches) {
      visit(branch.condition.get());
      visit(branch.body);
    }
    visit(stmt.body);
    visit(stmt.else_body);
    visit(stmt.condition.get());
  }

  int name_;
  bool used_ = false, stored_ = false;
};

class Resolver {
 public:
  explicit Resolver(TemplateTree& tree) : tree_(tree) {}

  Status run() {
    Symbols root;
    collect(tree_.body, root);
    tree_.scope = root.loads();
    return frames_of(tree_.body, root);
  }

 private:
  int id_of(std::string_view name) const {
    const auto found = std::find(tree_.names.begin(), tree_.names.end(), name);
    return found == tree_.names.end() ? -1 : static_cast<int>(found - tree_.names.begin());
  }

  // What the statements themselves read and set in their frame; frames within are left out.
  void collect(const Block& block, Symbols& symbols) {
    for (const Stmt& stmt : block) collect(stmt, symbols);
  }
  void collect(const Stmt& stmt, Symbols& symbols) {
    switch (stmt.kind) {
      case StmtKind::if_:
        return collect_branches(stmt, symbols);
      case StmtKind::set:
        load_all(stmt.value.get(), symbols);
        return store_target(stmt.target, symbols);
      case StmtKind::set_block:
      case StmtKind::macro:
        return store_target(stmt.target, symbols);
      case StmtKind::with:
        for (const auto& [target, value] : stmt.assignments) load_all(value.get(), symbols);
        return;
      default:  // of a loop only what it walks over
        return load_all(stmt.value.get(), symbols);
    }
  }
  void collect_branches(const Stmt& stmt, Symbols& symbols) {
    load_all(stmt.branches[0].condition.get(), symbols);
    std::vector<Symbols> parts(3, symbols);
    collect(stmt.branches[0].body, parts[0]);
    for (std::size_t i = 1; i < stmt.branches.size(); ++i) {
      load_all(stmt.branches[i].condition.get(), parts[1]);
      std::vector<Symbols> body(1, parts[1]);
      collect(stmt.branches[i].body, body[0]);
      parts[1].take_branches(body);
    }
    collect(stmt.body, parts[2]);
    symbols.take_branches(parts);
  }

  // The frames that the statements open, given the whole of their own frame.
  Status frames_of(Block& block, const Symbols& symbols) {
    for (Stmt& stmt : block) MSTAR_TRY(frames_of(stmt, symbols));
    return {};
  }
  Status frames_of(Stmt& stmt, const Symbols& symbols) {
    Symbols inner{&symbols, {}, {}};
    switch (stmt.kind) {
      case StmtKind::if_:
        for (Branch& branch : stmt.branches) MSTAR_TRY(frames_of(branch.body, symbols));
        return frames_of(stmt.body, symbols);
      case StmtKind::for_:
        return loop(stmt, symbols);
      case StmtKind::set_block:
        collect(stmt.body, inner);
        MSTAR_TRY(known_filter_names(stmt, inner));
        break;
      case StmtKind::filter_block:
        collect(stmt.body, inner);
        load_all(stmt.value.get(), inner);
        break;
      case StmtKind::with:
        for (const auto& [target, value] : stmt.assignments) declare_target(target, inner);
        collect(stmt.body, inner);
        break;
      case StmtKind::macro:
      case StmtKind::call_block:
      case StmtKind::scope:
        MSTAR_TRY(callable(stmt, inner));
        break;
      default:
        return {};
    }
    stmt.scope = inner.loads();
    return frames_of(stmt.body, inner);
  }

  // jinja2 forgets the names that the filters of a set block read, and fails when nobody else read them.
  static Status known_filter_names(const Stmt& stmt, const Symbols& inner) {
    bool known = true;
    each_name(stmt.value.get(), [&](int name) { known = known && inner.knows(name); });
    if (!known) return template_error(stmt.line, "the filter of a set block reads a name that is read nowhere else");
    return {};
  }

  Status loop(Stmt& stmt, const Symbols& symbols) {
    const int loop_id = id_of("loop");
    if (loop_id >= 0) {
      UseFinder in_body(loop_id);
      stmt.uses_loop = in_body.used_in(stmt.body);
      UseFinder anywhere(loop_id);
      anywhere.used_in(stmt.else_body);
      if (in_body.stored() || anywhere.stored() || anywhere.stores(stmt.target))
        return template_error(stmt.line, "the name loop can't be set within a loop");
    }
    Symbols body{&symbols, {}, {}}, condition = body, otherwise = body;
    if (stmt.uses_loop) body.declare_parameter(loop_id);
    declare_target(stmt.target, body);
    collect(stmt.body, body);
    stmt.scope = body.loads();
    collect(stmt.else_body, otherwise);
    stmt.else_scope = otherwise.loads();
    declare_target(stmt.target, condition);
    load_all(stmt.condition.get(), condition);
    stmt.condition_scope = condition.loads();
    MSTAR_TRY(frames_of(stmt.body, body));
    return frames_of(stmt.else_body, otherwise);
  }

  Status callable(Stmt& stmt, Symbols& inner) {
    Signature& signature = *stmt.signature;
    for (const int name : signature.names) inner.declare_parameter(name);
    const auto special = [&](std::string_view name) {
      const int id = id_of(name);
      return id >= 0 && UseFinder(id).used_in(stmt.body) ? id : -1;
    };
    const auto position = [&](int id) {
      return std::find(signature.names.begin(), signature.names.end(), id) - signature.names.begin();
    };
    const auto num_names = static_cast<std::ptrdiff_t>(signature.names.size());
    signature.caller_id = special("caller");
    if (const auto at = position(signature.caller_id); signature.caller_id >= 0 && at < num_names) {
      if (num_names - at > static_cast<std::ptrdiff_t>(signature.defaults.size()))
        return template_error(stmt.line, "an argument named caller needs a default");
      signature.caller_id = -1;
    }
    for (auto [name, id] : {std::pair("kwargs", &signature.kwargs_id), std::pair("varargs", &signature.varargs_id)}) {
      *id = special(name);
      if (*id >= 0 && position(*id) < num_names) *id = -1;
    }
    for (const int id : {signature.caller_id, signature.kwargs_id, signature.varargs_id}) {
      if (id >= 0) inner.declare_parameter(id);
    }
    for (const ExprPtr& value : signature.defaults) load_all(value.get(), inner);
    collect(stmt.body, inner);
    return {};
  }

  TemplateTree& tree_;
};

}  // namespace

Status resolve_scopes(TemplateTree& tree) { return Resolver(tree).run(); }

}  // namespace mstar::jinja
