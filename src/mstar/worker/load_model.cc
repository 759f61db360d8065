#include "mstar/worker/load_model.h"

#include <algorithm>

#include "mstar/base/load_progress.h"
#include "mstar/weights/weight_map.h"

namespace mstar::worker {
namespace {

// Home prefixes of all components, those on other workers too.
std::vector<std::string> homes_of(const decl::Decl& declaration) {
  std::vector<std::string> out;
  for (const decl::Component& component : declaration.components()) {
    if (component.on_host()) continue;
    out.insert(out.end(), component.device().homes.begin(), component.device().homes.end());
  }
  return out;
}

resource::PoolLimits limits_of(const decl::DeviceComponent& spec, resource::PoolLimits limits) {
  limits.max_rows = std::min(limits.max_rows, spec.max_batch_rows);
  // Where inputs may come in parts, a smaller limit only makes more of them.
  if (spec.max_batch_tokens > 0)
    limits.max_tokens =
        spec.chunked_prefill ? std::min(limits.max_tokens, spec.max_batch_tokens) : spec.max_batch_tokens;
  return limits;
}

}  // namespace

Status load_model(const WorkerModel& model, const LoadContext& context, engine::ResourceSet& resources,
                  std::vector<std::unique_ptr<engine::Engine>>& engines) {
  const decl::Decl& declaration = model.compiled->declaration();
  MSTAR_TRY_ASSIGN(weights::WeightMap weights,
                   weights::WeightMap::create(model.checkpoint, declaration.weight_rules()));
  if (const auto homes = homes_of(declaration); model.checkpoint && !homes.empty())
    MSTAR_TRY(weights.check_prefixes(homes));
  // Only components in step are cut, and what they use is theirs alone (check_ranks_in_step).
  const MeshSize mesh = model.in_step.empty() ? MeshSize() : context.mesh.size();
  MSTAR_TRY_ASSIGN(resources,
                   engine::ResourceSet::build(declaration, model.components, model.limits, context.device, mesh));
  note_load_progress();
  for (const decl::ComponentRef component : model.components) {
    const bool in_step = std::find(model.in_step.begin(), model.in_step.end(), component) != model.in_step.end();
    resource::PoolLimits limits = limits_of(declaration.at(component).device(), model.limits);
    limits.head_shards = in_step ? decl::head_shards(declaration.at(component).device(), mesh) : 1;
    MSTAR_TRY_ASSIGN(auto engine, engine::Engine::create(declaration, component,
                                                         {.limits = limits,
                                                          .buffers = context.buffers,
                                                          .pool = context.pool,
                                                          .profile = context.profile,
                                                          .mesh = in_step ? context.mesh : MeshEnds()},
                                                         resources, weights, context.device));
    engines.push_back(std::move(engine));
    note_load_progress();
  }
  if (!model.checkpoint) return ok_status();
  std::vector<std::string> homes;
  for (const decl::ComponentRef component : model.components)
    for (const std::string& prefix : declaration.at(component).device().homes) homes.push_back(prefix);
  if (!homes.empty()) MSTAR_TRY(weights.finish(homes));
  model.checkpoint->release_pages();
  return ok_status();
}

void add_pools(wire::WorkerStats& stats, const std::string& model, const engine::ResourceSet& resources) {
  for (const auto& usage : resources.usage())
    stats.pools.push_back({model, usage.name, usage.used, usage.total, usage.bytes, usage.cached, usage.num_preempted,
                           usage.found_tokens, usage.num_snapshots});
}

void add_component(wire::WorkerStats& stats, const std::string& model, const engine::Engine& engine) {
  const engine::StepCounters& c = engine.counters();
  stats.components.push_back({model, engine.spec().name, c.num_steps, c.num_rows, c.num_tokens, c.num_replays,
                              c.num_eager, c.num_allocations, c.num_ahead_rows, c.num_dropped_rows, c.num_host_syncs,
                              c.num_piecewise, c.num_region_replays});
  stats.weight_bytes += engine.weight_bytes();
  stats.arena_bytes += engine.arena_bytes();
  stats.num_graphs += static_cast<std::uint64_t>(engine.num_graphs());
  stats.captured_bytes += engine.captured_bytes();
}

}  // namespace mstar::worker
