// What a worker has loaded: engines, pools and weights, and how it lets go of them.
#include <algorithm>

#include "mstar/base/check.h"
#include "mstar/base/log.h"
#include "mstar/worker/worker.h"

namespace mstar::worker {

namespace {

// By walk of the model: rows of walks with one number may share a step of the component. Empty: all may.
std::vector<std::uint32_t> groups_of(const decl::DeviceComponent& component, std::size_t num_walks) {
  if (component.combined.empty()) return {};
  std::vector<std::uint32_t> groups(num_walks);
  for (std::size_t w = 0; w < num_walks; ++w) groups[w] = static_cast<std::uint32_t>(component.combined.size() + w);
  for (std::size_t g = 0; g < component.combined.size(); ++g)
    for (const decl::WalkRef walk : component.combined[g].walks) groups[walk.value] = static_cast<std::uint32_t>(g);
  return groups;
}

// Home prefixes of all components, those on other workers too.
std::vector<std::string> homes_of(const decl::Decl& declaration) {
  std::vector<std::string> out;
  for (const decl::Component& component : declaration.components()) {
    if (component.on_host()) continue;
    out.insert(out.end(), component.device().homes.begin(), component.device().homes.end());
  }
  return out;
}

}  // namespace

Status Worker::load() {
  const std::int64_t begun_us = clock_.now_us();
  models_.resize(options_.models.size());
  if (options_.device) buffers_ = std::make_shared<engine::BufferPool>(*options_.device);
  if (options_.device && options_.profile) options_.profile->set_marker(options_.device->range_marker());
  for (std::uint32_t m = 0; m < options_.models.size(); ++m) {
    const WorkerModel& model = options_.models[m];
    const decl::Decl& declaration = model.compiled->declaration();
    if (model.components.empty()) continue;
    find_followers(m);
    MSTAR_CHECK(options_.device != nullptr, "device components on a worker without a device");
    MSTAR_TRY_ASSIGN(weights::WeightMap weights,
                     weights::WeightMap::create(model.checkpoint, declaration.weight_rules()));
    if (const auto homes = homes_of(declaration); model.checkpoint && !homes.empty())
      MSTAR_TRY(weights.check_prefixes(homes));
    MSTAR_TRY_ASSIGN(models_[m].resources,
                     engine::ResourceSet::build(declaration, model.components, model.limits, *options_.device));
    for (const decl::ComponentRef component : model.components) {
      resource::PoolLimits limits = model.limits;
      const auto& spec = declaration.at(component).device();
      limits.max_rows = std::min(limits.max_rows, spec.max_batch_rows);
      // Where inputs may come in parts, a smaller limit only makes more of them.
      if (spec.max_batch_tokens > 0)
        limits.max_tokens =
            spec.chunked_prefill ? std::min(limits.max_tokens, spec.max_batch_tokens) : spec.max_batch_tokens;
      MSTAR_TRY_ASSIGN(auto engine,
                       engine::Engine::create(
                           declaration, component,
                           {.limits = limits, .buffers = buffers_, .pool = options_.pool, .profile = options_.profile},
                           models_[m].resources, weights, *options_.device));
      const std::size_t profiled = options_.profile ? options_.profile->add_component(model.name, spec.name) : 0;
      lane_of_[{m, component.value}] = lanes_.size();
      lanes_.push_back({.model = m,
                        .engine = std::move(engine),
                        .profiled = profiled,
                        .group_of_walk = groups_of(spec, declaration.walks().size())});
    }
    if (model.checkpoint) {
      std::vector<std::string> homes;
      for (const decl::ComponentRef component : model.components)
        for (const std::string& prefix : declaration.at(component).device().homes) homes.push_back(prefix);
      if (!homes.empty()) MSTAR_TRY(weights.finish(homes));
      model.checkpoint->release_pages();
    }
  }
  if (options_.run_ahead && options_.device && options_.device->is_asynchronous()) max_in_flight_ = 2;
  const std::int64_t loaded_us = clock_.now_us();
  for (Lane& lane : lanes_) {
    MSTAR_TRY(lane.engine->capture());
    lane.runs_ahead = max_in_flight_ > 1 && lane.engine->may_run_ahead();
  }
  if (options_.device && options_.device->is_asynchronous())
    log_info("worker {}: weights and pools in {:.2f} s, steps captured in {:.2f} s", options_.id.value,
             1e-6 * static_cast<double>(loaded_us - begun_us), 1e-6 * static_cast<double>(clock_.now_us() - loaded_us));
  is_loaded_ = true;
  publish_stats();
  return ok_status();
}

void Worker::on(const wire::Load&) {
  unloads_ = false;
  announced_ = false;
  if (is_loaded_) return;
  Status loaded = ok_status();
  try {
    loaded = load();
  } catch (const std::exception& error) {
    loaded = internal_error(error.what());
  }
  if (loaded) return;
  let_go();
  announced_ = true;
  tell_conductor(wire::WorkerFailed{options_.id, std::move(loaded.error())});
}

// The conductor asks for it when no request is left, but rows that were given up may be on the device still.
void Worker::unload_at_rest() {
  const bool runs = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.open.has_value(); });
  if (runs || !in_flight_.empty() || !requests_.empty()) return;
  unloads_ = false;
  let_go();
  publish_stats();
}

void Worker::let_go() {
  is_loaded_ = false;
  lanes_.clear();
  lane_of_.clear();
  models_.clear();
  buffers_.reset();
}

}  // namespace mstar::worker
