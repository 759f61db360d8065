#include "shared_state.h"

#include <algorithm>

#include "mstar/graph/placement.h"
#include "mstar/resource/resource.h"

namespace mstar::apps {
namespace {

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

// Walks in which the group runs a component with the resource.
std::set<int> walks_with(const decl::Decl& decl, const NodeGroup& group, decl::ResourceRef resource) {
  std::set<int> out;
  for (const auto& [component, walk] : runs_of(decl)) {
    const decl::ComponentRef ref(static_cast<std::uint16_t>(component));
    if (!decl.at(ref).on_host() && uses(decl, ref, resource) &&
        group.runs(ref, decl::WalkRef(static_cast<std::uint16_t>(walk))))
      out.insert(walk);
  }
  return out;
}

// Why the resource's state cannot go from worker to worker with a request, between two walks; empty: it can.
std::string why_it_stays(const decl::Decl& decl, const std::vector<const NodeGroup*>& groups,
                         decl::ResourceRef resource) {
  if (!resource::can_move(decl.at(resource))) return "of which each rank has its own; put them into one node group";
  std::set<int> seen;
  std::set<std::uint16_t> partitions;
  for (const NodeGroup* group : groups) {
    for (const int walk : walks_with(decl, *group, resource)) {
      if (!seen.insert(walk).second) return "of which each rank has its own, in one walk; put them into one node group";
      partitions.insert(decl.partition_of(decl::WalkRef(static_cast<std::uint16_t>(walk))).value);
    }
    // Replicas of several ranks in step: each rank has a share of the state, which nothing puts together.
    for (const std::vector<int>& ranks : group->replica_ranks)
      if (ranks.size() > 1) return "which cannot move between ranks that work in step; put them into one node group";
  }
  if (partitions.size() > 1) return "in walks that run side by side; put them into one node group";
  return {};
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
    if (!graph::keeps_state(decl.at(resource))) continue;
    const auto all = users(decl, groups, resource);
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (always_together(*all[0], *all[i])) continue;
      const std::string reason = why_it_stays(decl, all, resource);
      if (reason.empty()) break;
      out.push_back(all[0]->describe(decl) + " and " + all[i]->describe(decl) + " share '" +
                    decl::resource_name(decl.at(resource)) + "', " + reason);
      break;
    }
  }
  return out;
}

}  // namespace mstar::apps
