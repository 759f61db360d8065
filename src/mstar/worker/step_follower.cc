#include "mstar/worker/step_follower.h"

#include <exception>
#include <utility>

#include "mstar/base/clock.h"
#include "mstar/base/log.h"

namespace mstar::worker {

using engine::Engine;
using engine::RowInputs;

namespace {
constexpr std::chrono::microseconds kIdleUs(200000);
constexpr std::int64_t kStatsPeriodUs = 50000;
}  // namespace

StepFollower::StepFollower(StepFollowerOptions options, wire::Mesh& mesh)
    : options_(std::move(options)), mesh_(mesh), resources_(options_.models.size()) {}

StepFollower::~StepFollower() {
  stop();
  drop_steps();
}

Status StepFollower::load() {
  buffers_ = std::make_shared<engine::BufferPool>(*options_.device);
  for (std::uint32_t m = 0; m < options_.models.size(); ++m) {
    const WorkerModel& model = options_.models[m];
    if (model.components.empty()) continue;
    std::vector<std::unique_ptr<Engine>> engines;
    MSTAR_TRY(load_model(model,
                         {.device = *options_.device,
                          .buffers = buffers_,
                          .pool = options_.pool,
                          .mesh = options_.group->ends(options_.rank)},
                         resources_[m], engines));
    for (std::size_t c = 0; c < engines.size(); ++c)
      lanes_[{m, model.components[c]}] = {.model = m, .engine = std::move(engines[c])};
    state_.watch(resources_[m], resources_of(model.compiled->declaration(), model.components));
  }
  // In the leader's order.
  for (std::uint32_t m = 0; m < options_.models.size(); ++m)
    for (const decl::ComponentRef component : options_.models[m].components)
      MSTAR_TRY(lanes_.at({m, component}).engine->capture());
  publish_stats();
  return ok_status();
}

void StepFollower::start() {
  thread_ = std::thread([this] { run(); });
}

Status StepFollower::wait_loaded() { return loaded_.get_future().get(); }

void StepFollower::stop() {
  options_.group->close();
  if (thread_.joinable()) thread_.join();
}

void StepFollower::run() {
  Status loaded = internal_error("a worker failed to load");
  try {
    loaded = load();
  } catch (const std::exception& error) {
    loaded = internal_error(std::string("a worker failed to load: ") + error.what());
  }
  const bool is_loaded = loaded.ok();
  if (!is_loaded) options_.group->end("a rank could not load: " + loaded.error().message);
  loaded_.set_value(std::move(loaded));
  // One that has nothing loaded follows nothing, but its leader may wait for what it says of a step.
  if (is_loaded) {
    mesh_.to_conductor(wire::WorkerReady{options_.id});
  } else {
    stop_following();
  }
  Queue<LogEntry>& entries = options_.group->entries(options_.rank);
  const SteadyClock clock;
  for (;;) {
    ++num_turns_;
    const bool worked = replay_next();
    if (!worked && entries.closed() && !take_entries()) return;
    if (!worked) {
      entries.wait(kIdleUs);
    } else if (const std::int64_t now_us = clock.now_us(); now_us - stats_at_us_ >= kStatsPeriodUs) {
      stats_at_us_ = now_us;
      publish_stats();
    }
  }
}

// Whether there is one to replay.
bool StepFollower::take_entries() {
  if (next_ < taken_.size()) return true;
  next_ = 0;
  taken_.clear();
  options_.group->entries(options_.rank).take_all(taken_);
  return !taken_.empty();
}

bool StepFollower::replay_next() {
  if (!take_entries()) {
    if (stats_stale_) publish_stats();
    return false;
  }
  replay(std::move(taken_[next_++]));
  stats_stale_ = true;
  return true;
}

void StepFollower::replay(LogEntry entry) {
  if (!ended_ && !options_.group->failure()) stop_following();
  if (!ended_ && entry.state && *entry.state != state_.value())
    give_up("rank " + std::to_string(options_.rank) + " of the group is in another state than its leader (entry " +
            std::to_string(entry.number) + " of the log)");
  if (ended_) return replay_ended(entry.action);
  const bool asks = std::holds_alternative<LogAdvance>(entry.action);
  const std::uint64_t step = asks ? std::get<LogAdvance>(entry.action).step : 0;
  Status done;
  try {
    done = std::visit([this](auto& action) { return on(std::move(action)); }, entry.action);
  } catch (const std::exception& error) {
    done = internal_error(error.what());
  }
  if (!done) give_up("rank " + std::to_string(options_.rank) + " of the group cannot follow: " + done.error().message);
  if (!done && asks) replay_ended(LogAdvance{step});
}

void StepFollower::give_up(const std::string& reason) {
  options_.group->end(reason);
  stop_following();
}

void StepFollower::stop_following() {
  ended_ = true;
  drop_steps();
  values_.clear();
}

// What its rows hold of the pools goes with their requests.
void StepFollower::drop_steps() {
  for (auto& each : steps_) each.second.engine->wait(*each.second.step);
  steps_.clear();
}

void StepFollower::replay_ended(const LogAction& action) {
  if (const auto* const advance = std::get_if<LogAdvance>(&action))
    options_.group->acknowledge({options_.rank, advance->step, options_.group->failure()});
  if (std::holds_alternative<LogLoad>(action))
    options_.group->acknowledge({options_.rank, kLoading, options_.group->failure()});
  if (const auto* const remove = std::get_if<LogRemove>(&action))
    if (Status removed = on(*remove); !removed) log_error("worker {}: {}", options_.id.value, removed.error().message);
}

Result<Engine*> StepFollower::engine_of(LaneKey lane) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return internal_error("the log is about a component that this rank does not have");
  return found->second.engine.get();
}

Result<StepFollower::Running*> StepFollower::running(std::uint64_t step) {
  const auto found = steps_.find(step);
  if (found == steps_.end()) return internal_error("the log is about a step that this rank did not prepare");
  return &found->second;
}

Status StepFollower::on(const LogAdd& add) {
  if (add.model >= resources_.size()) return internal_error("a request for a model that this rank does not have");
  Status added = resources_[add.model].add_request(add.request, *add.params);
  state_.note(add.added ? 1 : 0);
  if (add.added) {
    MSTAR_TRY(std::move(added));
    requests_.insert(add.request);
  } else if (added) {  // what the leader had no room for may be a component of its own
    resources_[add.model].remove_request(add.request);
  }
  return ok_status();
}

Status StepFollower::on(const LogRemove& remove) {
  if (remove.model >= resources_.size()) return internal_error("a request of a model that this rank does not have");
  resources_[remove.model].remove_request(remove.request);
  requests_.erase(remove.request);
  for (auto& each : lanes_)
    if (each.first.model == remove.model) each.second.engine->forget(remove.request);
  return ok_status();
}

Result<RowInputs> StepFollower::inputs_of(LogPrepare::Row row) const {
  for (const LogPrepare::Own& own : row.own) {
    const auto found = values_.find(own.name);
    if (found == values_.end()) return internal_error("a row takes a value that this rank does not have");
    Value& value = row.inputs.ports[own.port][own.index];
    value = found->second;
    if (!own.on_host) value.host = {};
  }
  return std::move(row.inputs);
}

Status StepFollower::on(LogPrepare prepare) {
  MSTAR_TRY_ASSIGN(Engine* const engine, engine_of(prepare.lane));
  std::vector<RowInputs> rows;
  rows.reserve(prepare.rows.size());
  for (LogPrepare::Row& each : prepare.rows) {
    MSTAR_TRY_ASSIGN(RowInputs row, inputs_of(std::move(each)));
    rows.push_back(std::move(row));
  }
  Engine::Prepared prepared = engine->prepare(std::move(rows));
  state_.note(engine->digest(prepared));
  if (prepared.step) steps_[prepare.step] = {engine, std::move(prepared.step)};
  return ok_status();
}

Status StepFollower::on(const LogAdvance& advance) {
  MSTAR_TRY_ASSIGN(Running* const running, this->running(advance.step));
  const auto whole = running->engine->advance(*running->step);
  Status status = whole ? Engine::status(*running->step) : Status(whole.error());
  if (!status && options_.group->computes_together(running->engine->spec()))
    options_.group->end("rank " + std::to_string(options_.rank) +
                        " of the group failed a step: " + status.error().message);
  options_.group->acknowledge({options_.rank, advance.step, std::move(status)});
  return ok_status();
}

Status StepFollower::on(const LogPromise& promise) {
  MSTAR_TRY_ASSIGN(Running* const running, this->running(promise.step));
  keep_values(promise.step, running->engine->promised(*running->step));
  return ok_status();
}

Status StepFollower::on(const LogFinish& finish) {
  MSTAR_TRY_ASSIGN(Running* const running, this->running(finish.step));
  for (const std::uint32_t tag : finish.dropped) running->engine->drop(*running->step, tag);
  const auto results = running->engine->finish(std::move(running->step));
  steps_.erase(finish.step);
  state_.note(Engine::digest(results));
  keep_values(finish.step, results);
  return ok_status();
}

Status StepFollower::on(const LogAbandon& abandon) {
  MSTAR_TRY_ASSIGN(Running* const running, this->running(abandon.step));
  running->engine->wait(*running->step);
  steps_.erase(abandon.step);
  return ok_status();
}

Status StepFollower::on(const LogUndo& undo) {
  MSTAR_TRY_ASSIGN(Engine* const engine, engine_of(undo.lane));
  engine->undo(undo.request, undo.progress);
  return ok_status();
}

Status StepFollower::on(const LogRelease& release) {
  for (const ValueName& name : release.names) values_.erase(name);
  return ok_status();
}

Status StepFollower::on(const LogUnload&) {
  if (!requests_.empty()) return internal_error("its leader lets go while requests are left");
  drop_steps();
  values_.clear();
  lanes_.clear();
  resources_ = std::vector<engine::ResourceSet>(options_.models.size());
  buffers_.reset();
  state_ = {};
  publish_stats();
  return ok_status();
}

Status StepFollower::on(const LogLoad&) {
  Status loaded = load();
  options_.group->acknowledge({options_.rank, kLoading, loaded});
  return loaded;
}

void StepFollower::keep_values(std::uint64_t step, const std::vector<engine::RowResult>& results) {
  for (const engine::RowResult& result : results)
    for (std::size_t o = 0; o < result.outputs.size(); ++o)
      for (std::size_t i = 0; i < result.outputs[o].size(); ++i)
        if (const Value& value = result.outputs[o][i]; value.device)
          values_[{step, result.tag, static_cast<std::uint16_t>(o), static_cast<std::uint16_t>(i)}] = value;
}

void StepFollower::publish_stats() {
  stats_stale_ = false;
  wire::WorkerStats stats;
  stats.num_requests = static_cast<std::int64_t>(requests_.size());
  for (std::size_t m = 0; m < resources_.size(); ++m) add_pools(stats, options_.models[m].name, resources_[m]);
  for (const auto& each : lanes_) add_component(stats, options_.models[each.second.model].name, *each.second.engine);
  if (buffers_) stats.buffer_bytes = buffers_->held_bytes();
  if (options_.on_stats) options_.on_stats(stats);
  std::lock_guard lock(stats_mutex_);
  stats_ = std::move(stats);
}

wire::WorkerStats StepFollower::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

}  // namespace mstar::worker
