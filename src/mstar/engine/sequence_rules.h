// Which paged KV may grant its pages on demand, and which may share prefixes: what follows from a declaration.
#pragma once

#include <string>

#include "mstar/decl/decl.h"

namespace mstar::engine {

struct SequenceRules {
  bool on_demand = false;     // pages can be taken from a request and computed again
  bool prefix_cache = false;  // pages may serve other requests
  int state_snapshots = 0;    // > 0: with recurrent state beside them, of which so many copies are kept
  int snapshot_tokens = 0;    // on this grid
  std::string why_not;        // why there is no prefix cache; else empty
};
// Of a paged KV; nothing for other resources. Pure host logic.
SequenceRules sequence_rules(const decl::Decl& decl, decl::ResourceRef kv);

}  // namespace mstar::engine
