// Which ranks run each component of a model: the YAML's node groups against its declaration. Pure.
#pragma once

#include <string>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/base/shares.h"
#include "mstar/decl/decl.h"

namespace mstar::apps {

// Components that are placed together; ranks / (tp_size x sp_size) replicas of them, each on so many ranks that follow
// each other in the list, row-major [sp][tp].
struct NodeGroupConfig {
  std::vector<std::string> components;
  std::vector<std::string> walks;  // empty: every walk that the components run in
  std::vector<int> ranks;
  int tp_size = 1;
  int sp_size = 1;
  std::string weights;  // how its components' matrices are kept; empty: as the model's option says
};

// `replica_ranks` is the one source of replicas: the conductor's table, the workers' components, the warm-up, links
// between processes, the memory plan and the checks read it.
struct NodeGroup {
  std::vector<decl::ComponentRef> components;
  std::vector<decl::WalkRef> walks;             // in which it runs them; empty: in all
  std::vector<std::vector<int>> replica_ranks;  // of each replica the ranks that work in step, the first of
                                                // which leads; none: the host's pool
  MeshSize mesh = {};                           // of the ranks of a replica
  bool on_host() const { return replica_ranks.empty(); }
  std::size_t num_replicas() const { return replica_ranks.size(); }
  std::vector<int> ranks() const;  // of all replicas
  bool runs(decl::ComponentRef component, decl::WalkRef walk) const;
  // For people: "'encoder'", "'decoder' in walk 'decode'".
  std::string describe(const decl::Decl& decl) const;
};

inline constexpr int kMaxRank = 63;

// Every component in exactly one group for each walk that runs it: as configured, else host components on the host and
// device components on rank 0. bad_model lists every fault: unknown names, components that are placed twice or for some
// of their walks only, host components with ranks, groups without components or ranks, ranks that stand twice, and
// state that several groups would use, of which each rank has its own.
Result<std::vector<NodeGroup>> resolve_node_groups(const decl::Decl& decl, const std::vector<NodeGroupConfig>& config);

}  // namespace mstar::apps
