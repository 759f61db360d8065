#include "memory_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <set>

#include "inspect_parts.h"
#include "mstar/weights/weight_map.h"

namespace mstar::apps {
namespace {

// Elements that a source adds to its home.
std::int64_t num_elements(const weights::WeightMapping::Source& source) {
  return source.name.empty() ? 0 : source.shape.num_elements() / std::max(1, source.num_pieces);
}

std::size_t kept_bytes(const weights::WeightMapping::Source& source, const std::string& kept) {
  const auto elements = static_cast<std::size_t>(num_elements(source));
  const bool matrix = source.shape.rank() >= 2;
  if (!matrix) return elements * 4;  // vectors are computed with, not stored
  if (kept == "f32") return elements * 4;
  if (kept == "f16" || kept == "bf16") return elements * 2;
  if (kept == "i8") return elements;
  return source.type.row_bytes(static_cast<std::int64_t>(elements));
}

// Of one rank, where `shards` of them share a component's matrices.
std::map<std::string, std::size_t> component_bytes(const PlannedModel& model, const weights::WeightMap& map,
                                                   std::size_t shards) {
  std::map<std::string, std::size_t> out;
  for (const weights::WeightMapping& home : map.mappings()) {
    // The longest prefix owns the home, as a decoder's cross attention may be a component of its own.
    std::string owner;
    std::size_t longest = 0;
    for (const decl::Component& each : model.decl->components()) {
      if (each.on_host()) continue;
      for (const std::string& prefix : each.device().homes)
        if (home.home.starts_with(prefix) && prefix.size() >= longest) {
          longest = prefix.size();
          owner = each.name();
        }
    }
    std::size_t bytes = 0;
    for (const auto& source : home.sources) {
      const std::size_t whole = kept_bytes(source, model.weights(owner));
      bytes += source.shape.rank() >= 2 ? (whole + shards - 1) / shards : whole;
    }
    if (!owner.empty()) out[owner] += bytes;
  }
  return out;
}

std::size_t shards_of(const decl::DeviceComponent& component, const NodeGroup& group) {
  return static_cast<std::size_t>(decl::weight_shards(component, group.mesh));
}

Status add_model(const PlannedModel& model, const resource::PoolLimits& limits, MemoryPlan& plan) {
  std::map<std::size_t, std::map<std::string, std::size_t>> weights;  // by the ranks that share them
  weights[1];
  for (const NodeGroup& group : *model.groups)
    for (const decl::ComponentRef each : group.components)
      if (!group.on_host()) weights[shards_of(model.decl->at(each).device(), group)];
  if (model.checkpoint) {
    MSTAR_TRY_ASSIGN(const auto map, weights::WeightMap::create(model.checkpoint, model.decl->weight_rules()));
    for (auto& each : weights) each.second = component_bytes(model, map, each.first);
  }
  std::set<std::pair<int, std::uint16_t>> pools;   // components of one rank share a resource
  std::set<std::pair<int, std::uint16_t>> placed;  // groups of different walks may share a component's weights
  for (const NodeGroup& group : *model.groups)
    for (const int rank : group.ranks())
      for (const decl::ComponentRef component : group.components) {
        if (!placed.emplace(rank, component.value).second) continue;
        const decl::DeviceComponent& spec = model.decl->at(component).device();
        const std::size_t shards = shards_of(spec, group);
        resource::PoolLimits cut = limits;
        cut.head_shards = decl::head_shards(spec, group.mesh);
        if (const auto found = weights[shards].find(spec.name); found != weights[shards].end())
          plan.lines.push_back({rank, model.name, spec.name, "weights", found->second});
        for (const decl::ResourceRef resource : spec.uses) {
          const std::size_t bytes = resource::planned_bytes(model.decl->at(resource), cut);
          if (bytes > 0 && pools.emplace(rank, resource.value).second)
            plan.lines.push_back({rank, model.name, decl::resource_name(model.decl->at(resource)), "pool", bytes});
        }
      }
  return ok_status();
}

}  // namespace

std::size_t MemoryPlan::total_bytes() const {
  std::size_t out = 0;
  for (const MemoryLine& each : lines) out += each.bytes;
  return out;
}

int MemoryPlan::device_of(int rank) const {
  const auto found = rank_devices.find(rank);
  return found == rank_devices.end() ? 0 : found->second;
}

std::size_t MemoryPlan::rank_bytes(int rank) const {
  std::size_t out = 0;
  for (const MemoryLine& each : lines)
    if (each.rank == rank) out += each.bytes;
  return out;
}

std::size_t MemoryPlan::fullest_bytes() const {
  std::map<int, std::size_t> devices;
  std::size_t out = 0;
  for (const MemoryLine& each : lines) out = std::max(out, devices[device_of(each.rank)] += each.bytes);
  return out;
}

Result<MemoryPlan> plan_memory(const std::vector<PlannedModel>& models, const resource::PoolLimits& limits,
                               std::size_t budget_bytes) {
  MemoryPlan plan{.lines = {}, .budget_bytes = budget_bytes, .rank_devices = {}};
  for (const PlannedModel& each : models) MSTAR_TRY(add_model(each, limits, plan));
  std::stable_sort(plan.lines.begin(), plan.lines.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return plan;
}

std::int64_t default_kv_tokens(const decl::PagedKv& spec, int max_requests, std::size_t budget_bytes,
                               std::size_t free_bytes) {
  const std::size_t token_bytes = bytes_per_page(spec) / static_cast<std::size_t>(spec.page_tokens);
  const std::int64_t longest = spec.max_tokens_per_request;
  const auto places_in = [&](std::size_t bytes) {
    const auto places = static_cast<std::int64_t>(bytes / std::max<std::size_t>(token_bytes, 1));
    return places - places % spec.page_tokens;
  };
  const std::int64_t wanted = std::max(places_in(budget_bytes / 8), std::min(2 * longest, places_in(budget_bytes / 2)));
  const std::int64_t places = std::min(wanted, places_in(free_bytes));
  return places < longest || places >= longest * max_requests ? 0 : places;
}

std::string format_bytes(std::size_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= std::size_t{1} << 30) return fmt::format("{:.1f} GiB", value / (1 << 30));
  if (bytes >= std::size_t{1} << 20) return fmt::format("{:.0f} MiB", value / (1 << 20));
  return fmt::format("{:.0f} KiB", value / (1 << 10));
}

std::string memory_table(const MemoryPlan& plan) {
  std::size_t model_width = 5, part_width = 4;
  for (const MemoryLine& each : plan.lines) {
    model_width = std::max(model_width, each.model.size());
    part_width = std::max(part_width, each.part.size());
  }
  std::string out = fmt::format("  rank  {:<{}}  {:<{}}  {:<11}  {:>10}\n", "model", model_width, "part", part_width,
                                "what", "memory");
  for (const MemoryLine& each : plan.lines)
    out += fmt::format("  {:>4}  {:<{}}  {:<{}}  {:<11}  {:>10}\n", each.rank, each.model, model_width, each.part,
                       part_width, each.kind, format_bytes(each.bytes));
  const std::size_t label = 4 + 2 + model_width + 2 + part_width + 2 + 11;
  std::set<int> ranks;
  for (const MemoryLine& each : plan.lines) ranks.insert(each.rank);
  if (ranks.size() > 1)
    for (const int rank : ranks)
      out += fmt::format("  {:<{}}  {:>10}\n", fmt::format("rank {} together", rank), label,
                         format_bytes(plan.rank_bytes(rank)));
  out += fmt::format("  {:<{}}  {:>10}\n", "together", label, format_bytes(plan.total_bytes()));
  out += fmt::format("  {:<{}}  {:>10}\n", plan.rank_devices.empty() ? "budget" : "budget of each device", label,
                     format_bytes(plan.budget_bytes));
  return out;
}

}  // namespace mstar::apps
