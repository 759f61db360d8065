// Which ranks run each component of a model: the YAML's node groups against its declaration. Pure.
#pragma once

#include <string>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/decl/decl.h"

namespace mstar::apps {

// Components that are placed together; ranks / (tp_size x sp_size) replicas of them.
struct NodeGroupConfig {
  std::vector<std::string> components;
  std::vector<std::string> walks;  // empty: every walk that the components run in
  std::vector<int> ranks;
  int tp_size = 1;
  int sp_size = 1;
};

struct NodeGroup {
  std::vector<decl::ComponentRef> components;
  std::vector<int> ranks;  // empty: the host's pool
  bool on_host() const { return ranks.empty(); }
};

inline constexpr int kMaxRank = 63;

// Every component in exactly one group: as configured, else host components on the host and device components on rank
// 0. bad_model lists every fault: unknown or twice-placed components, host components with ranks, what this build does
// not do yet (tp_size, sp_size, a group for some of the walks).
Result<std::vector<NodeGroup>> resolve_node_groups(const decl::Decl& decl, const std::vector<NodeGroupConfig>& config);

}  // namespace mstar::apps
