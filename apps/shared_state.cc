#include "shared_state.h"

#include <algorithm>
#include <variant>

namespace mstar::apps {
namespace {

// Step plans over other resources keep nothing of a request.
bool has_state(const decl::ResourceSpec& spec) {
  return !std::holds_alternative<decl::LinearAttention>(spec) && !std::holds_alternative<decl::Attention>(spec) &&
         !std::holds_alternative<decl::RaggedAttention>(spec);
}

bool uses(const decl::Decl& decl, decl::ComponentRef component, decl::ResourceRef resource) {
  const auto& used = decl.at(component).device().uses;
  return std::find(used.begin(), used.end(), resource) != used.end();
}

// Groups in which a component with the resource runs.
std::vector<const NodeGroup*> users(const decl::Decl& decl, const std::vector<NodeGroup>& groups,
                                    decl::ResourceRef resource) {
  std::vector<const NodeGroup*> out;
  for (const NodeGroup& group : groups)
    if (!group.on_host() && std::any_of(group.components.begin(), group.components.end(),
                                        [&](const decl::ComponentRef each) { return uses(decl, each, resource); }))
      out.push_back(&group);
  return out;
}

// Whether every request has both on one worker, whatever it chooses.
bool always_together(const NodeGroup& a, const NodeGroup& b) {
  return a.num_replicas() == 1 && a.replica_ranks == b.replica_ranks;
}

}  // namespace

std::set<std::pair<int, int>> runs_of(const decl::Decl& decl) {
  std::set<std::pair<int, int>> out;
  for (std::uint16_t w = 0; w < decl.walks().size(); ++w)
    decl::for_each_run(decl.walks()[w].root, [&](const decl::Run& run) { out.emplace(run.component.value, w); });
  return out;
}

std::vector<std::string> shared_state_faults(const decl::Decl& decl, const std::vector<NodeGroup>& groups) {
  std::vector<std::string> out;
  for (std::uint16_t r = 0; r < decl.resources().size(); ++r) {
    const decl::ResourceRef resource(r);
    if (!has_state(decl.at(resource))) continue;
    const auto all = users(decl, groups, resource);
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (always_together(*all[0], *all[i])) continue;
      out.push_back(all[0]->describe(decl) + " and " + all[i]->describe(decl) + " share '" +
                    decl::resource_name(decl.at(resource)) +
                    "', of which each rank has its own; put them into one node group");
      break;
    }
  }
  return out;
}

}  // namespace mstar::apps
