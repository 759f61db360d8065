#pragma once

#include "mstar/base/result.h"
#include "mstar/text/jinja/ast.h"

namespace mstar::jinja {

// Fills the scopes of `tree`: jinja2 decides before a template runs which frame each name belongs to, so a name that is
// set anywhere in a frame is that frame's own from its start. Fills the special arguments of signatures and
// Stmt::uses_loop too. bad_model, with the line, where jinja2 can't compile such names.
Status resolve_scopes(TemplateTree& tree);

}  // namespace mstar::jinja
