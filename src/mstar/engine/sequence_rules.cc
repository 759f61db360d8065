#include "mstar/engine/sequence_rules.h"

#include <algorithm>
#include <variant>

namespace mstar::engine {
namespace {

// State of a row's own that its tokens change.
bool is_state(const decl::ResourceSpec& spec) {
  return std::holds_alternative<decl::RecurrentState>(spec) || std::holds_alternative<decl::Latents>(spec);
}

}  // namespace

SequenceRules sequence_rules(const decl::Decl& decl, decl::ResourceRef kv) {
  const auto* const spec = std::get_if<decl::PagedKv>(&decl.at(kv));
  if (!spec) return {};
  SequenceRules rules{.on_demand = true, .prefix_cache = spec->prefix_cache};
  if (!rules.prefix_cache) rules.why_not = "it is switched off";
  for (const decl::Component& each : decl.components()) {
    if (each.on_host()) continue;
    const auto& uses = each.device().uses;
    if (std::find(uses.begin(), uses.end(), kv) == uses.end()) continue;
    if (!each.device().chunked_prefill) return {.why_not = "'" + each.name() + "' takes its inputs whole"};
    for (const decl::ResourceRef other : uses) {
      if (!is_state(decl.at(other))) continue;
      rules.prefix_cache = false;
      // A recurrent state starts from zeros and follows the tokens; what latents hold, others may have put there.
      rules.on_demand &= std::holds_alternative<decl::RecurrentState>(decl.at(other));
      rules.why_not = "'" + each.name() + "' keeps '" + decl::resource_name(decl.at(other)) +
                      "' beside it, of which no snapshots are taken yet";
    }
  }
  rules.on_demand &= spec->labels.size() == 1;
  return rules;
}

}  // namespace mstar::engine
