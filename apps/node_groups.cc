#include "node_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "yaml_tree.h"

namespace mstar::apps {
namespace {

std::vector<std::string> component_names(const decl::Decl& decl) {
  std::vector<std::string> out;
  for (const decl::Component& each : decl.components()) out.push_back(each.name());
  return out;
}

std::string known(const std::string& name, const std::vector<std::string>& names) {
  std::string out;
  const std::string near = nearest_name(name, names);
  if (!near.empty()) out = "; did you mean '" + near + "'?";
  for (std::size_t i = 0; i < names.size(); ++i) out += (i ? ", " : " It has: ") + names[i];
  return out;
}

// Walks that run one of the components.
std::set<std::string> walks_of(const decl::Decl& decl, const std::vector<decl::ComponentRef>& components) {
  std::set<std::string> out;
  for (const decl::Walk& walk : decl.walks())
    decl::for_each_run(walk.root, [&](const decl::Run& run) {
      if (std::find(components.begin(), components.end(), run.component) != components.end()) out.insert(walk.name);
    });
  return out;
}

class Resolver {
 public:
  explicit Resolver(const decl::Decl& decl) : decl_(decl), placed_(decl.components().size(), false) {}

  void add(const NodeGroupConfig& config) {
    NodeGroup group{.components = {}, .ranks = config.ranks};
    for (const std::string& name : config.components) add_component(name, group);
    if (config.tp_size != 1 || config.sp_size != 1)
      fault("tp_size and sp_size above 1 need several devices that work in step, which this build does not run yet");
    for (const int rank : config.ranks)
      if (rank > kMaxRank) fault("rank " + std::to_string(rank) + " is above the largest, " + std::to_string(kMaxRank));
    check_walks(config, group);
    if (!group.components.empty()) groups_.push_back(std::move(group));
  }

  Result<std::vector<NodeGroup>> finish() {
    NodeGroup host, rest{.components = {}, .ranks = {0}};
    for (std::uint16_t c = 0; c < decl_.components().size(); ++c) {
      const decl::Component& component = decl_.components()[c];
      if (component.on_host()) host.components.emplace_back(c);
      if (!component.on_host() && !placed_[c]) rest.components.emplace_back(c);
    }
    if (!rest.components.empty()) groups_.insert(groups_.begin(), std::move(rest));
    if (!host.components.empty()) groups_.insert(groups_.begin(), std::move(host));
    if (!faults_.empty()) return bad_model("model '" + decl_.name() + "': " + faults_);
    return std::move(groups_);
  }

 private:
  void fault(const std::string& text) { faults_ += (faults_.empty() ? "" : "; ") + text; }

  void add_component(const std::string& name, NodeGroup& group) {
    const decl::ComponentRef ref = decl_.find_component(name);
    if (!ref.valid()) return fault("there is no component '" + name + "'" + known(name, component_names(decl_)));
    if (decl_.at(ref).on_host())
      return fault("'" + name + "' runs on the host and takes no ranks; leave it out of node_groups");
    if (placed_[ref.value]) return fault("the component '" + name + "' is in two node groups");
    placed_[ref.value] = true;
    group.components.push_back(ref);
  }

  void check_walks(const NodeGroupConfig& config, const NodeGroup& group) {
    if (config.walks.empty()) return;
    std::vector<std::string> names;
    for (const decl::Walk& each : decl_.walks()) names.push_back(each.name);
    for (const std::string& each : config.walks)
      if (std::find(names.begin(), names.end(), each) == names.end())
        fault("there is no walk '" + each + "'" + known(each, names));
    for (const std::string& each : walks_of(decl_, group.components))
      if (std::find(config.walks.begin(), config.walks.end(), each) == config.walks.end())
        return fault("a node group for some walks only is not supported yet; leave 'walks' out, or add '" + each + "'");
  }

  const decl::Decl& decl_;
  std::vector<bool> placed_;
  std::vector<NodeGroup> groups_;
  std::string faults_;
};

}  // namespace

Result<std::vector<NodeGroup>> resolve_node_groups(const decl::Decl& decl, const std::vector<NodeGroupConfig>& config) {
  Resolver resolver(decl);
  for (const NodeGroupConfig& each : config) resolver.add(each);
  return resolver.finish();
}

}  // namespace mstar::apps
