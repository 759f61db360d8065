#include "mstar/engine/sequence_rules.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace mstar::engine {
namespace {

using decl::DeviceComponent;
using decl::ResourceRef;

bool is_used(const DeviceComponent& component, ResourceRef ref) {
  return std::find(component.uses.begin(), component.uses.end(), ref) != component.uses.end();
}

template <class Spec>
std::vector<ResourceRef> used(const decl::Decl& decl, const DeviceComponent& component) {
  std::vector<ResourceRef> out;
  for (const ResourceRef each : component.uses)
    if (std::holds_alternative<Spec>(decl.at(each))) out.push_back(each);
  return out;
}

std::string name_of(const decl::Decl& decl, ResourceRef ref) { return "'" + decl::resource_name(decl.at(ref)) + "'"; }

// Why there can be no snapshots of this state that belong to texts of the KV; else empty.
std::string why_no_snapshots(const decl::Decl& decl, ResourceRef kv, ResourceRef state) {
  const auto& pages = std::get<decl::PagedKv>(decl.at(kv));
  const auto& spec = std::get<decl::RecurrentState>(decl.at(state));
  const std::string beside = name_of(decl, state) + " beside it";
  if (spec.snapshots == 0) return beside + ", of which no snapshots are taken";
  if (spec.snapshot_tokens % pages.page_tokens != 0)
    return beside + " on a grid of " + std::to_string(spec.snapshot_tokens) + " tokens, not of pages of " +
           std::to_string(pages.page_tokens);
  if (pages.labels.size() > 1 || spec.labels.size() > 1) return beside + ", which forks";
  for (const decl::Component& each : decl.components())
    if (!each.on_host() && is_used(each.device(), state) && !is_used(each.device(), kv))
      return beside + ", which '" + each.name() + "' changes without it";
  return {};
}

}  // namespace

SequenceRules sequence_rules(const decl::Decl& decl, decl::ResourceRef kv) {
  const auto* const spec = std::get_if<decl::PagedKv>(&decl.at(kv));
  if (!spec) return {};
  SequenceRules rules{.on_demand = true, .prefix_cache = spec->prefix_cache};
  const auto no_cache = [&](std::string why) {
    if (rules.why_not.empty()) rules.why_not = std::move(why);
    rules.prefix_cache = false;
  };
  if (!rules.prefix_cache) no_cache("it is switched off");
  const decl::Component* first = nullptr;
  for (const decl::Component& each : decl.components()) {
    if (each.on_host() || !is_used(each.device(), kv)) continue;
    if (!each.device().chunked_prefill) return {.why_not = "'" + each.name() + "' takes its inputs whole"};
    // A recurrent state starts from zeros and follows the tokens; what latents hold, others may have put there.
    const std::string keeps = "'" + each.name() + "' keeps ";
    for (const ResourceRef other : used<decl::Latents>(decl, each.device())) {
      no_cache(keeps + name_of(decl, other) + " beside it, of which no snapshots are taken");
      rules.on_demand = false;
    }
    const auto states = used<decl::RecurrentState>(decl, each.device());
    if (first && states != used<decl::RecurrentState>(decl, first->device()))
      no_cache("'" + first->name() + "' and '" + each.name() + "' keep different state beside it");
    if (!first) first = &each;
    for (const ResourceRef state : states) {
      if (const std::string why = why_no_snapshots(decl, kv, state); !why.empty()) no_cache(keeps + why);
      const auto& kept = std::get<decl::RecurrentState>(decl.at(state));
      if (rules.snapshot_tokens > 0 && kept.snapshot_tokens != rules.snapshot_tokens)
        no_cache(keeps + name_of(decl, state) + " beside it on a grid of its own");
      rules.snapshot_tokens = kept.snapshot_tokens;
      rules.state_snapshots = rules.state_snapshots ? std::min(rules.state_snapshots, kept.snapshots) : kept.snapshots;
    }
  }
  if (!rules.prefix_cache) rules.state_snapshots = rules.snapshot_tokens = 0;
  rules.on_demand &= spec->labels.size() == 1;
  return rules;
}

}  // namespace mstar::engine
