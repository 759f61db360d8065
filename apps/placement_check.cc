#include "placement_check.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "mstar/base/log.h"
#include "mstar/graph/placement.h"

namespace mstar::apps {
namespace {

constexpr std::size_t kMaxChoices = 4096;

std::string name_of(const RankDevice& device) {
  return device.backend == Backend::cuda ? "cuda:" + std::to_string(device.index) : "cpu";
}

// Replicas of a group that differ in whom they share their ranks with: all that others have too, and one of its own.
std::vector<std::vector<int>> unlike_replicas(const std::vector<NodeGroup>& groups, std::size_t group) {
  std::map<int, int> num_groups;  // that have a replica led by the rank
  for (const NodeGroup& each : groups)
    for (const std::vector<int>& ranks : each.replica_ranks) ++num_groups[ranks.front()];
  std::vector<std::vector<int>> out;
  bool has_own = false;
  for (const std::vector<int>& ranks : groups[group].replica_ranks) {
    const bool own = num_groups[ranks.front()] == 1;
    if (!own || !has_own) out.push_back(ranks);
    has_own |= own;
  }
  return out;
}

// One choice of a replica for each group: the next one in `at`; false after the last.
bool next_choice(const std::vector<std::vector<std::vector<int>>>& replicas, std::vector<std::size_t>& at) {
  for (std::size_t g = 0; g < at.size(); ++g) {
    if (++at[g] < std::max<std::size_t>(1, replicas[g].size())) return true;
    at[g] = 0;
  }
  return false;
}

graph::RequestPlacement placement_of(const graph::CompiledModel& model, const std::vector<NodeGroup>& groups,
                                     const std::vector<std::vector<std::vector<int>>>& replicas,
                                     const std::vector<std::size_t>& at) {
  graph::RequestPlacement out(model, WorkerId());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const WorkerId worker(groups[g].on_host() ? 0u : static_cast<std::uint32_t>(replicas[g][at[g]].front()) + 1);
    for (const decl::ComponentRef component : groups[g].components) {
      if (groups[g].walks.empty()) out.set(component, worker);
      for (const decl::WalkRef walk : groups[g].walks) out.set(component, walk, worker);
    }
  }
  return out;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i ? ", " : "") + std::to_string(ranks[i]);
  return out;
}

// One replica of one node group.
struct Placed {
  const OpenedModel* model = nullptr;
  const NodeGroup* group = nullptr;
  const std::vector<int>* ranks = nullptr;
  std::string describe() const { return group->describe(*model->decl) + " of '" + model->config.name + "'"; }
  bool in_step() const { return ranks->size() > 1; }
  bool has(int rank) const { return std::find(ranks->begin(), ranks->end(), rank) != ranks->end(); }
};

std::vector<Placed> all_placed(const std::vector<OpenedModel>& models) {
  std::vector<Placed> out;
  for (const OpenedModel& model : models)
    for (const NodeGroup& group : model.groups)
      for (const std::vector<int>& ranks : group.replica_ranks) out.push_back({&model, &group, &ranks});
  return out;
}

// A log can be followed by one who does nothing else, and a rank that waits for two others in turn would have them wait
// for each other.
Status check_apart(const Placed& together, const Placed& other) {
  if (*together.ranks == *other.ranks && together.group->mesh == other.group->mesh) return ok_status();
  for (const int rank : *together.ranks) {
    const bool leads = rank == together.ranks->front();
    if (!other.has(rank) || (leads && !other.in_step())) continue;
    return invalid_request("rank " + std::to_string(rank) + " works in step with others for " + together.describe() +
                           " (" + ranks_text(*together.ranks) + "), so it cannot run " + other.describe() + " on " +
                           ranks_text(*other.ranks) +
                           "; give that the same ranks, tp_size and sp_size, or ranks of its own");
  }
  return ok_status();
}

// Whether it has pools that are cut where its ranks are several.
bool has_cut_pools(const Placed& placed) {
  return std::any_of(placed.group->components.begin(), placed.group->components.end(), [&](decl::ComponentRef each) {
    const decl::DeviceComponent& spec = placed.model->decl->at(each).device();
    return spec.tensor_parallel && !spec.uses.empty();
  });
}

// A rank has one set of pools of a model, cut for the group or whole.
Status check_cut(const Placed& together, const Placed& other) {
  if (other.model != together.model || other.in_step() || !together.has(other.ranks->front())) return ok_status();
  if (!has_cut_pools(other)) return ok_status();
  return invalid_request("rank " + std::to_string(other.ranks->front()) + " holds a part of " + together.describe() +
                         ", so it cannot hold the whole of " + other.describe() +
                         " too; give both the same ranks, tp_size and sp_size");
}

// Heads are shared out over all ranks; the rest of what a component has over those that hold parts of its weights.
Status check_units(const Placed& placed) {
  const MeshSize mesh = placed.group->mesh;
  for (const decl::ComponentRef each : placed.group->components) {
    const decl::DeviceComponent& spec = placed.model->decl->at(each).device();
    for (const decl::SharedUnits& units : spec.shared_units) {
      const int weights = decl::weight_shards(spec, mesh);
      const int shards = units.are_heads ? decl::head_shards(spec, mesh) : weights;
      // First over the parts of the weights, then each part's over those that split rows.
      int left = units.count;
      const auto divides = [&](int ranks) {
        const bool repeats = units.may_repeat && left < ranks && ranks % left == 0;
        if (!repeats && left % ranks != 0) return false;
        left = repeats ? 1 : left / ranks;
        return true;
      };
      if (divides(weights) && divides(shards / weights)) continue;
      const std::string over = shards == mesh.tensor     ? "tp_size"
                               : shards == mesh.sequence ? "sp_size"
                                                         : "tp_size x sp_size";
      return invalid_request("'" + spec.name + "' of '" + placed.model->config.name + "' has " +
                             std::to_string(units.count) + " " + units.name + ", which do not divide over " + over +
                             " = " + std::to_string(shards) + " ranks");
    }
  }
  return ok_status();
}

// CUDA loads kernels at their first launch, for which it may wait for all that a GPU does: for ever, where a rank on it
// waits for that launch.
Status check_shared_devices(const Placed& each, const RuntimeConfig& config) {
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  for (std::size_t a = 0; a < each.ranks->size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      const int index = cuda_index(config, (*each.ranks)[a]);
      if (index != cuda_index(config, (*each.ranks)[b])) continue;
      const std::string both = ranks_text({(*each.ranks)[b], (*each.ranks)[a]}) + " work in step for " +
                               each.describe() + " and are both on cuda:" + std::to_string(index);
      if (config.isolation == Isolation::process) return invalid_request(both + "; give each its own");
      if (!loading || std::string_view(loading) != "EAGER")
        return invalid_request(
            both +
            "; give each its own, or, to try the placement out, set CUDA_MODULE_LOADING=EAGER in the environment");
      log_warn("{}: good for a trial, slower than one rank", both);
    }
  return ok_status();
}

}  // namespace

int num_ranks(const std::vector<OpenedModel>& models) {
  int out = 1;
  for (const OpenedModel& model : models)
    for (const NodeGroup& group : model.groups)
      for (const int rank : group.ranks()) out = std::max(out, rank + 1);
  return out;
}

int cuda_index(const RuntimeConfig& config, int rank) {
  const auto found = config.rank_devices.find(rank);
  return found == config.rank_devices.end() ? rank : found->second.index;
}

Result<DeviceChoice> chosen_device(const RuntimeConfig& config) {
  const RankDevice* first = nullptr;
  for (const auto& [rank, device] : config.rank_devices) {
    if (first && first->backend != device.backend)
      return invalid_request("rank_devices names " + name_of(*first) + " and " + name_of(device) +
                             "; all ranks work on CUDA devices, or all on the processor");
    first = &device;
    const bool contradicts =
        device.backend == Backend::cuda ? config.device == DeviceChoice::cpu : config.device == DeviceChoice::cuda;
    if (contradicts)
      return invalid_request("rank_devices puts rank " + std::to_string(rank) + " on " + name_of(device) +
                             ", and 'device' says " + (device.backend == Backend::cuda ? "cpu" : "cuda") +
                             "; leave one of them out");
  }
  if (!first) return config.device;
  return first->backend == Backend::cuda ? DeviceChoice::cuda : DeviceChoice::cpu;
}

Status check_devices(const RuntimeConfig& config, Backend backend, int num_ranks, int num_cuda_devices) {
  for (const auto& [rank, device] : config.rank_devices)
    if (rank >= num_ranks)
      return invalid_request("rank_devices names rank " + std::to_string(rank) + ", and the node groups have " +
                             (num_ranks == 1 ? "rank 0 only" : "ranks up to " + std::to_string(num_ranks - 1)));
  if (backend != Backend::cuda) return ok_status();
  for (int rank = 0; rank < num_ranks; ++rank)
    if (const int index = cuda_index(config, rank); index >= num_cuda_devices)
      return unavailable("rank " + std::to_string(rank) + " is to work on cuda:" + std::to_string(index) +
                         ", and the last CUDA device here is cuda:" + std::to_string(num_cuda_devices - 1) +
                         "; name fewer ranks, or give several of them one device with rank_devices");
  return ok_status();
}

Status check_ranks_in_step(const std::vector<OpenedModel>& models, const RuntimeConfig& config, Backend backend) {
  const std::vector<Placed> placed = all_placed(models);
  for (const Placed& each : placed) {
    if (!each.in_step()) continue;
    if (backend == Backend::cuda) MSTAR_TRY(check_shared_devices(each, config));
    MSTAR_TRY(check_units(each));
    for (const Placed& other : placed) {
      MSTAR_TRY(check_apart(each, other));
      MSTAR_TRY(check_cut(each, other));
    }
  }
  return ok_status();
}

Status check_fragments(const graph::CompiledModel& model, const std::vector<NodeGroup>& groups) {
  std::vector<std::vector<std::vector<int>>> replicas;
  for (std::size_t g = 0; g < groups.size(); ++g) replicas.push_back(unlike_replicas(groups, g));
  std::vector<std::size_t> at(groups.size(), 0);
  for (std::size_t tried = 0; tried < kMaxChoices; ++tried) {
    auto placed = graph::PlacedModel::place(model, placement_of(model, groups, replicas, at));
    if (!placed) {
      std::string where;
      for (std::size_t g = 0; g < groups.size(); ++g)
        if (!groups[g].on_host())
          where += (where.empty() ? "" : ", ") + groups[g].describe(model.declaration()) + " on rank " +
                   std::to_string(replicas[g][at[g]].front());
      return bad_model(placed.error().message + "\n  with " + where);
    }
    if (!next_choice(replicas, at)) return ok_status();
  }
  return bad_model("the node groups have more than " + std::to_string(kMaxChoices) +
                   " ways to combine replicas that differ, too many to check them all; give groups that work for one "
                   "request the same ranks, or fewer");
}

}  // namespace mstar::apps
