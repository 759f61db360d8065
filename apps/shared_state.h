// State of a request that several node groups use: where it lies, and whether it can follow the request. Pure.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "node_groups.h"

namespace mstar::apps {

// (component, walk), by their numbers, that a model runs.
std::set<std::pair<int, int>> runs_of(const decl::Decl& decl);

// Each rank has its own copy of a resource, so whoever reads one must run where it was written, or get what was written
// there: between two walks of one partition, where resource::can_move says so, a request's state goes along. One line
// for each resource whose users may be on different ranks in any other way.
std::vector<std::string> shared_state_faults(const decl::Decl& decl, const std::vector<NodeGroup>& groups);

}  // namespace mstar::apps
