#include "node_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "shared_state.h"
#include "yaml_tree.h"

namespace mstar::apps {
namespace {

std::vector<std::string> component_names(const decl::Decl& decl) {
  std::vector<std::string> out;
  for (const decl::Component& each : decl.components()) out.push_back(each.name());
  return out;
}

std::vector<std::string> walk_names(const decl::Decl& decl) {
  std::vector<std::string> out;
  for (const decl::Walk& each : decl.walks()) out.push_back(each.name);
  return out;
}

std::string known(const std::string& name, const std::vector<std::string>& names) {
  std::string out;
  const std::string near = nearest_name(name, names);
  if (!near.empty()) out = "; did you mean '" + near + "'?";
  for (std::size_t i = 0; i < names.size(); ++i) out += (i ? ", " : " It has: ") + names[i];
  return out;
}

// Each rank that stands more than once, once.
std::vector<int> repeated(std::vector<int> ranks) {
  std::vector<int> out;
  std::sort(ranks.begin(), ranks.end());
  for (std::size_t i = 1; i < ranks.size(); ++i)
    if (ranks[i] == ranks[i - 1] && (out.empty() || out.back() != ranks[i])) out.push_back(ranks[i]);
  return out;
}

class Resolver {
 public:
  explicit Resolver(const decl::Decl& decl) : decl_(decl), runs_(runs_of(decl)) {}

  void add(const NodeGroupConfig& config) {
    NodeGroup group;
    add_walks(config, group);
    for (const std::string& name : config.components) add_component(name, config, group);
    if (config.components.empty()) fault("a node group names no component");
    add_ranks(config, group);
    check_walks(config, group);
    if (!group.components.empty()) groups_.push_back(std::move(group));
  }

  Result<std::vector<NodeGroup>> finish() {
    NodeGroup host, rest{.components = {}, .walks = {}, .replica_ranks = {{0}}};
    for (std::uint16_t c = 0; c < decl_.components().size(); ++c) {
      const decl::ComponentRef component(c);
      if (decl_.at(component).on_host()) {
        host.components.push_back(component);
      } else if (placed_.lower_bound({c, 0}) == placed_.lower_bound({c + 1, 0})) {
        rest.components.push_back(component);
      } else {
        check_all_walks_placed(component);
      }
    }
    if (!rest.components.empty()) groups_.insert(groups_.begin(), std::move(rest));
    if (!host.components.empty()) groups_.insert(groups_.begin(), std::move(host));
    if (faults_.empty())  // only what stands can be compared
      for (const std::string& each : shared_state_faults(decl_, groups_)) fault(each);
    if (!faults_.empty()) return bad_model("model '" + decl_.name() + "': " + faults_);
    return std::move(groups_);
  }

 private:
  void fault(const std::string& text) { faults_ += (faults_.empty() ? "" : "; ") + text; }

  void add_walks(const NodeGroupConfig& config, NodeGroup& group) {
    for (const std::string& name : config.walks) {
      const std::vector<std::string> names = walk_names(decl_);
      const auto found = std::find(names.begin(), names.end(), name);
      if (found == names.end()) {
        fault("there is no walk '" + name + "'" + known(name, names));
        continue;
      }
      const decl::WalkRef walk(static_cast<std::uint16_t>(found - names.begin()));
      if (std::find(group.walks.begin(), group.walks.end(), walk) != group.walks.end())
        fault("the walk '" + name + "' stands twice in one node group");
      else
        group.walks.push_back(walk);
    }
  }

  void add_component(const std::string& name, const NodeGroupConfig& config, NodeGroup& group) {
    const decl::ComponentRef ref = decl_.find_component(name);
    if (!ref.valid()) return fault("there is no component '" + name + "'" + known(name, component_names(decl_)));
    if (decl_.at(ref).on_host())
      return fault("'" + name + "' runs on the host and takes no ranks; leave it out of node_groups");
    if (std::find(group.components.begin(), group.components.end(), ref) != group.components.end())
      return fault("the component '" + name + "' stands twice in one node group");
    std::vector<decl::WalkRef> walks = group.walks;
    if (config.walks.empty())
      for (std::uint16_t w = 0; w < decl_.walks().size(); ++w) walks.emplace_back(w);
    for (const decl::WalkRef walk : walks)
      if (!placed_.emplace(ref.value, walk.value).second)
        return fault("the component '" + name + "' is in two node groups" +
                     (config.walks.empty() ? "" : " for the walk '" + decl_.at(walk).name + "'"));
    group.components.push_back(ref);
  }

  void add_ranks(const NodeGroupConfig& config, NodeGroup& group) {
    const std::string who = config.components.empty() ? "" : " of '" + config.components.front() + "'";
    if (config.ranks.empty()) return fault("the node group" + who + " has no ranks");
    if (config.tp_size < 1) return fault("tp_size of the node group" + who + " is below 1");
    if (config.sp_size < 1) return fault("sp_size of the node group" + who + " is below 1");
    for (const int rank : repeated(config.ranks))
      fault("rank " + std::to_string(rank) + " stands twice in the node group" + who);
    for (const int rank : config.ranks) {
      if (rank < 0) fault("rank " + std::to_string(rank) + " is below 0");
      if (rank > kMaxRank) fault("rank " + std::to_string(rank) + " is above the largest, " + std::to_string(kMaxRank));
    }
    group.mesh = {.tensor = config.tp_size, .sequence = config.sp_size};
    const auto in_step = static_cast<std::size_t>(config.tp_size) * static_cast<std::size_t>(config.sp_size);
    if (config.ranks.size() % in_step != 0)
      return fault("the node group" + who + " has " + std::to_string(config.ranks.size()) +
                   " ranks, which is no multiple of " + (config.sp_size > 1 ? "tp_size x sp_size" : "tp_size") + " = " +
                   std::to_string(in_step));
    for (std::size_t i = 0; i < config.ranks.size(); i += in_step)
      group.replica_ranks.emplace_back(config.ranks.begin() + static_cast<std::ptrdiff_t>(i),
                                       config.ranks.begin() + static_cast<std::ptrdiff_t>(i + in_step));
  }

  // Walks that were named for nothing.
  void check_walks(const NodeGroupConfig& config, const NodeGroup& group) {
    if (group.components.size() != config.components.size()) return;
    for (const decl::WalkRef walk : group.walks)
      if (std::none_of(group.components.begin(), group.components.end(), [&](const decl::ComponentRef each) {
            return runs_.count({each.value, walk.value});
          }))
        fault("the walk '" + decl_.at(walk).name + "' runs no component of the node group of '" +
              config.components.front() + "'");
  }

  void check_all_walks_placed(decl::ComponentRef component) {
    for (std::uint16_t w = 0; w < decl_.walks().size(); ++w)
      if (runs_.count({component.value, w}) && !placed_.count({component.value, w}))
        fault("no node group runs '" + decl_.at(component).name() + "' in the walk '" +
              decl_.at(decl::WalkRef(w)).name + "'; add that to the 'walks' of one");
  }

  const decl::Decl& decl_;
  const std::set<std::pair<int, int>> runs_;  // (component, walk) that there are
  std::set<std::pair<int, int>> placed_;      // by a node group
  std::vector<NodeGroup> groups_;
  std::string faults_;
};

}  // namespace

std::vector<int> NodeGroup::ranks() const {
  std::vector<int> out;
  for (const std::vector<int>& each : replica_ranks) out.insert(out.end(), each.begin(), each.end());
  return out;
}

bool NodeGroup::runs(decl::ComponentRef component, decl::WalkRef walk) const {
  return std::find(components.begin(), components.end(), component) != components.end() &&
         (walks.empty() || std::find(walks.begin(), walks.end(), walk) != walks.end());
}

std::string NodeGroup::describe(const decl::Decl& decl) const {
  std::string out;
  for (const decl::ComponentRef each : components) out += (out.empty() ? "'" : ", '") + decl.at(each).name() + "'";
  for (std::size_t w = 0; w < walks.size(); ++w)
    out += (w ? ", '" : walks.size() == 1 ? " in the walk '" : " in the walks '") + decl.at(walks[w]).name + "'";
  return out;
}

Result<std::vector<NodeGroup>> resolve_node_groups(const decl::Decl& decl, const std::vector<NodeGroupConfig>& config) {
  Resolver resolver(decl);
  for (const NodeGroupConfig& each : config) resolver.add(each);
  return resolver.finish();
}

}  // namespace mstar::apps
