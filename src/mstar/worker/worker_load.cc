// What a worker has loaded: engines, pools and weights, and how it lets go of them.
#include <algorithm>
#include <utility>

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

}  // namespace

Status Worker::load_lanes(std::uint32_t m) {
  const WorkerModel& model = options_.models[m];
  if (model.components.empty()) return ok_status();
  const decl::Decl& declaration = model.compiled->declaration();
  find_followers(m);
  MSTAR_CHECK(options_.device != nullptr, "device components on a worker without a device");
  MSTAR_CHECK(leader_ || model.in_step.empty(), "components in step on a worker that leads no group");
  std::vector<std::unique_ptr<engine::Engine>> engines;
  MSTAR_TRY(load_model(model,
                       {.device = *options_.device,
                        .buffers = buffers_,
                        .pool = options_.pool,
                        .profile = options_.profile,
                        .mesh = options_.group ? options_.group->ends(0) : MeshEnds()},
                       models_[m].resources, engines));
  if (!model.in_step.empty()) leader_->add_model(m, declaration, model.in_step, models_[m].resources);
  for (std::size_t c = 0; c < engines.size(); ++c) {
    const LaneKey key{m, model.components[c]};
    const auto& spec = engines[c]->spec();
    const bool in_step = std::find(model.in_step.begin(), model.in_step.end(), key.component) != model.in_step.end();
    lane_of_[{m, key.component.value}] = lanes_.size();
    lanes_.push_back({.model = m,
                      .engine = std::move(engines[c]),
                      .profiled = options_.profile ? options_.profile->add_component(model.name, spec.name) : 0,
                      .group_of_walk = groups_of(spec, declaration.walks().size())});
    lanes_.back().steps = LaneSteps(key, *lanes_.back().engine, in_step ? leader_.get() : nullptr);
  }
  return ok_status();
}

Status Worker::load() {
  const std::int64_t begun_us = clock_.now_us();
  models_.resize(options_.models.size());
  if (options_.device) buffers_ = std::make_shared<engine::BufferPool>(*options_.device);
  if (options_.device && options_.profile) options_.profile->set_marker(options_.device->range_marker());
  if (options_.group) leader_ = std::make_unique<StepLeader>(options_.group);
  const bool loads_together = std::exchange(followers_wait_, false);
  if (loads_together) leader_->load();
  for (std::uint32_t m = 0; m < options_.models.size(); ++m) MSTAR_TRY(load_lanes(m));
  if (options_.run_ahead && options_.device && options_.device->is_asynchronous()) max_in_flight_ = 2;
  const std::int64_t loaded_us = clock_.now_us();
  for (Lane& lane : lanes_) {
    MSTAR_TRY(lane.engine->capture());
    lane.runs_ahead = max_in_flight_ > 1 && lane.engine->may_run_ahead();
  }
  if (loads_together) MSTAR_TRY(leader_->wait_loaded());
  if (options_.device && options_.device->is_asynchronous())
    log_info("worker {}: weights and pools in {:.2f} s, steps captured in {:.2f} s", options_.id.value,
             1e-6 * static_cast<double>(loaded_us - begun_us), 1e-6 * static_cast<double>(clock_.now_us() - loaded_us));
  is_loaded_ = true;
  publish_stats();
  return ok_status();
}

void Worker::on(const wire::Load&) {
  // A group that has ended does not come back: another one must be there.
  if (options_.group)
    if (Status ended = options_.group->failure(); !ended) {
      const std::lock_guard lock(group_mutex_);
      reloads_ = next_group_ != nullptr;
      if (!reloads_) tell_conductor(wire::WorkerFailed{options_.id, std::move(ended.error())});
      return;
    }
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
  if (options_.group) options_.group->end("the leader could not load: " + loaded.error().message);
  tell_conductor(wire::WorkerFailed{options_.id, std::move(loaded.error())});
}

bool Worker::is_at_rest() const {
  const bool runs = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.open.has_value(); });
  return !runs && in_flight_.empty() && requests_.empty();
}

// The conductor asks for it when no request is left, but rows that were given up may be on the device still.
void Worker::unload_at_rest() {
  if (!is_at_rest()) return;
  unloads_ = false;
  if (leader_) {
    leader_->unload();
    followers_wait_ = true;
  }
  let_go();
  publish_stats();
}

void Worker::set_next_group(std::shared_ptr<StepGroup> group) {
  const std::lock_guard lock(group_mutex_);
  next_group_ = std::move(group);
}

// The conductor ends the requests of a group that has ended.
void Worker::reload_at_rest() {
  if (!is_at_rest()) return;
  reloads_ = false;
  let_go();
  {
    const std::lock_guard lock(group_mutex_);
    options_.group = std::exchange(next_group_, nullptr);
  }
  followers_wait_ = false;  // those of a new group load by themselves
  Status loaded = ok_status();
  try {
    loaded = load();
  } catch (const std::exception& error) {
    loaded = internal_error(error.what());
  }
  told_group_ended_ = false;
  announced_ = !loaded.ok();
  if (loaded) return;
  let_go();
  options_.group->end("the leader could not load: " + loaded.error().message);
  tell_conductor(wire::WorkerFailed{options_.id, std::move(loaded.error())});
}

void Worker::let_go() {
  is_loaded_ = false;
  lanes_.clear();
  lane_of_.clear();
  leader_.reset();
  models_.clear();
  buffers_.reset();
}

}  // namespace mstar::worker
