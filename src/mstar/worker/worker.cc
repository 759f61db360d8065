// A worker's life: loading, the loop, and the messages that it gets.
#include "mstar/worker/worker.h"

#include <algorithm>

#include "mstar/base/log.h"

namespace mstar::worker {

using decl::PartitionRef;

namespace {
constexpr std::int64_t kStatsPeriodUs = 50000;
constexpr std::size_t kMaxTold = 256;
constexpr std::chrono::microseconds kIdleUs(200000);
constexpr std::chrono::microseconds kHeldUs(100);  // then the loop looks whether the device has ended already
constexpr std::size_t kMaxBatchBytes = 256 << 10;
}  // namespace

Worker::Worker(WorkerOptions options, wire::Mesh& mesh)
    : options_(std::move(options)),
      clock_(options_.clock ? *options_.clock : steady_clock_),
      mesh_(mesh),
      builds_late_(options_.clock != nullptr) {}

Worker::~Worker() {
  stop();
  // The device may still read what the steps hold.
  for (Batch& batch : in_flight_) batch.lane->engine->wait(*batch.step);
  for (Lane& lane : lanes_)
    if (lane.open && lane.open->step) lane.engine->wait(*lane.open->step);
}

void Worker::stop() {
  if (!thread_.joinable()) return;
  inbox_->push(Inbox(wire::ToWorker(wire::Shutdown{})));
  thread_.join();
}

Status Worker::start() {
  MSTAR_TRY(load());
  thread_ = std::thread([this] { run(); });
  return ok_status();
}

void Worker::run() {
  builds_late_ = true;
  while (!stopping_) {
    if (poll()) continue;
    const PhaseScope scope(options_.profile, Phase::idle);
    if (!held_ && inbox_->look_until(awake_until_)) continue;
    inbox_->wait(held_ ? std::min(kHeldUs, left_to_wait()) : kIdleUs);
  }
}

bool Worker::poll() {
  ++num_turns_;
  if (!announced_) tell_conductor(wire::WorkerReady{options_.id});
  announced_ = true;
  bool worked = take_messages();
  if (unloads_) unload_at_rest();
  if (reloads_) reload_at_rest();
  flush_to_conductor();
  if (!stopping_) worked |= step_once();
  if (!hand_overs_.empty()) send_states();
  report_ended_group();
  flush_to_conductor();
  if (stopping_) return true;
  if (stats_stale_) publish_stats_when_due(!worked && !held_);
  return worked;
}

// Once. The conductor ends this worker's requests and sends it no more; it stays to give back what it holds.
void Worker::report_ended_group() {
  if (!leader_ || told_group_ended_) return;
  Status ended = leader_->failure();
  if (ended) return;
  told_group_ended_ = true;
  announced_ = true;  // one that has loaded and not said so yet has nothing to say
  tell_conductor(wire::WorkerFailed{options_.id, std::move(ended.error())});
}

bool Worker::take_messages() {
  const PhaseScope scope(options_.profile, Phase::messages);
  bool worked = false;
  for (auto& message : inbox_->take_all()) {
    worked = true;
    on_message(std::move(message));
    if (stopping_) break;
  }
  return worked;
}

// Of a step's many messages each would wake the conductor: they leave by the hundred, and before the worker waits.
void Worker::tell_conductor(wire::ToConductor message) {
  if (to_conductor_.size() >= kMaxTold) flush_to_conductor();
  to_conductor_.push_back(std::move(message));
}

// Takes parts of about so many bytes. A value that is larger than a batch has one to itself: where it cannot be sent,
// only its request fails.
wire::ClientValues& Worker::open_batch(std::size_t num_bytes) {
  auto* last = to_conductor_.empty() ? nullptr : std::get_if<wire::ClientValues>(&to_conductor_.back());
  if (last && last->parts.size() >= kMaxTold) {
    flush_to_conductor();
    last = nullptr;
  }
  if (!last || batch_bytes_ + num_bytes > kMaxBatchBytes) {
    tell_conductor(wire::ClientValues{options_.id, {}, {}});
    last = &std::get<wire::ClientValues>(to_conductor_.back());
    last->parts.reserve(kMaxTold);
    last->values.reserve(kMaxTold);
    batch_bytes_ = 0;
  }
  batch_bytes_ += num_bytes;
  return *last;
}

void Worker::flush_to_conductor() {
  if (to_conductor_.empty()) return;
  const PhaseScope scope(options_.profile, Phase::tell);
  mesh_.all_to_conductor(to_conductor_);
  to_conductor_.clear();
}

void Worker::on_message(Inbox message) {
  auto* stage = std::get_if<StageDone>(&message);
  const RequestId request = stage ? stage->request : wire::request_of(std::get<wire::ToWorker>(message));
  // What a library throws (out of memory, say) ends the request that it was for, not the worker.
  try {
    if (stage) return on(std::move(*stage));
    std::visit([this](auto&& each) { on(std::move(each)); }, std::move(std::get<wire::ToWorker>(message)));
  } catch (const std::exception& error) {
    if (Live* live = find(request)) return fail_after(*live, error);
    log_error("worker {}: {}", options_.id.value, error.what());
    if (request.valid())
      tell_conductor(wire::RequestFailed{request, internal_error(std::string("the worker failed: ") + error.what())});
  }
}

Worker::Live* Worker::find(RequestId request) {
  const auto it = requests_.find(request);
  return it == requests_.end() ? nullptr : it->second.get();
}

Result<std::unique_ptr<Worker::Live>> Worker::make_live(wire::AddRequest& message) {
  if (message.model >= models_.size()) return internal_error("a request for a model that this worker does not have");
  ModelState& model = models_[message.model];
  const graph::CompiledModel& compiled = *options_.models[message.model].compiled;
  auto live = std::make_unique<Live>();
  live->request = message.request;
  live->model = message.model;
  live->params = message.params;
  auto& placed = model.placements[message.placement];
  if (!placed) {
    MSTAR_TRY_ASSIGN(auto table, graph::RequestPlacement::from_table(compiled, message.placement));
    MSTAR_TRY_ASSIGN(placed, graph::PlacedModel::place(compiled, std::move(table)));
  }
  live->placed = placed;
  live->partitions.resize(compiled.partitions().size());
  for (std::uint16_t p = 0; p < live->partitions.size(); ++p) {
    const auto workers = placed->workers(PartitionRef(p));
    if (std::find(workers.begin(), workers.end(), options_.id) == workers.end()) continue;
    live->partitions[p] = std::make_unique<graph::PartitionState>(placed, options_.id, PartitionRef(p));
    const auto& wanted = compiled.at(PartitionRef(p)).request_inputs;
    for (const auto& [port, values] : message.inputs)
      if (std::find(wanted.begin(), wanted.end(), port) != wanted.end())
        live->partitions[p]->give_request_input(port, values);
  }
  MSTAR_TRY(leader_ && leader_->leads(live->model)
                ? leader_->add_request(live->model, live->request, live->params, model.resources)
                : model.resources.add_request(message.request, *message.params));
  return live;
}

void Worker::on(wire::AddRequest message) {
  if (message.request <= last_added_) return;  // repeated
  last_added_ = message.request;
  early_.forget_before(message.request);
  early_states_.erase(early_states_.begin(), early_states_.lower_bound(message.request));
  stats_stale_ = true;
  auto replay = early_.take(message.request);
  if (replay.removed) return;
  auto made = make_live(message);
  if (!made) return tell_conductor(wire::RequestFailed{message.request, std::move(made.error())});
  requests_.emplace(message.request, std::move(*made));
  stay_awake();
  stats_stale_ = true;
  for (auto& signal : replay.signals) on(wire::PartitionMessage{message.request, std::move(signal)});
  if (auto states = early_states_.extract(message.request))
    for (wire::StateParcel& each : states.mapped()) on(std::move(each));
}

void Worker::on(wire::PartitionMessage message) {
  Live* live = find(message.request);
  if (!live) {
    // Another worker's message may overtake the conductor's AddRequest, or come after the removal.
    stats_stale_ = true;
    if (message.request > last_added_ && !early_.hold(message.request, std::move(message.signal)))
      tell_conductor(wire::RequestFailed{message.request, internal_error("too many early signals")});
    return;
  }
  const PartitionRef partition = message.signal.partition;
  if (live->over() || partition.value >= live->partitions.size() || !live->partitions[partition.value]) return;
  auto& state = *live->partitions[partition.value];
  // Refused signals are stale or repeated: not an error.
  if (auto applied = state.apply(std::move(message.signal.signal), effects_); !applied)
    return fail(*live, std::move(applied.error()));
  settle_ahead(*live, partition);  // a stop may have ended the loop that it was for
  undo_cut_off(*live, partition);
  send_effects(*live, partition, effects_);
  collect_ready(*live, partition);
}

void Worker::on(wire::CancelPartition message) {
  Live* live = find(message.request);
  const std::size_t p = message.partition.value;
  if (!live || live->over() || p >= live->partitions.size() || !live->partitions[p]) return;
  auto done = live->partitions[p]->cancel(message.drop_streams);
  settle_ahead(*live, message.partition);
  undo_cut_off(*live, message.partition);
  if (done)
    tell_conductor(wire::FragmentReport{live->request,
                                        options_.id,
                                        message.partition,
                                        std::move(*done),
                                        {},
                                        models_[live->model].resources.cached_tokens(live->request)});
}

void Worker::on(const wire::RemoveRequest& message) {
  Live* live = find(message.request);
  if (live) {
    live->removing = true;
    *live->abandoned = true;
    if (live->num_in_flight == 0) finish_removal(*live);
    return;
  }
  // Requests are added in the order of their ids and before they are removed, by one sender: what still comes for this
  // one is late.
  if (message.request > last_added_) {
    last_added_ = message.request;
    early_.forget_before(RequestId(message.request.value + 1));
    early_states_.erase(early_states_.begin(), early_states_.upper_bound(message.request));
    stats_stale_ = true;
  }
  tell_conductor(wire::Removed{message.request, options_.id});
}

void Worker::fail(Live& live, Error error) {
  if (live.failed) return;
  live.failed = true;
  *live.abandoned = true;
  tell_conductor(wire::RequestFailed{live.request, std::move(error)});
}

void Worker::fail_after(Live& live, const std::exception& error) {
  log_error("worker {}: request {}: {}", options_.id.value, live.request.value, error.what());
  fail(live, internal_error(std::string("the worker failed: ") + error.what()));
}

void Worker::release_in_flight(Live& live) {
  if (--live.num_in_flight == 0 && live.removing) finish_removal(live);
}

// With more requests the next message is as likely to be for one of those.
void Worker::stay_awake() {
  if (options_.stays_awake.count() > 0 && requests_.size() <= 1)
    awake_until_ = std::chrono::steady_clock::now() + options_.stays_awake;
}

void Worker::finish_removal(Live& live) {
  const RequestId request = live.request;
  engine::ResourceSet& resources = models_[live.model].resources;
  if (leader_ && leader_->leads(live.model))
    leader_->remove_request(live.model, request, resources);
  else
    resources.remove_request(request);
  for (Lane& lane : lanes_) {
    lane.engine->forget(request);
    std::erase_if(lane.queue, [&](const Pending& each) { return each.request == request; });
  }
  requests_.erase(request);
  if (requests_.empty()) stay_awake();
  unblock_lanes();
  stats_stale_ = true;
  tell_conductor(wire::Removed{request, options_.id});
}

// A step's numbers may wait a little; that requests came or went may not.
// An idle worker's statistics are up to date; those of a busy one are as old as the period at most.
void Worker::publish_stats_when_due(bool idle) {
  const std::int64_t now_us = clock_.now_us();
  const bool moved = stats_.num_requests != static_cast<std::int64_t>(requests_.size());
  const bool at_once = idle && (moved || requests_.empty());
  if (!at_once && now_us - stats_at_us_ < kStatsPeriodUs) return;
  stats_at_us_ = now_us;
  const PhaseScope scope(options_.profile, Phase::statistics);
  publish_stats();
}

void Worker::publish_stats() {
  stats_stale_ = false;
  wire::WorkerStats stats;
  stats.num_requests = static_cast<std::int64_t>(requests_.size());
  stats.num_early_signals = early_.num_signals();
  for (std::size_t m = 0; m < models_.size(); ++m) add_pools(stats, options_.models[m].name, models_[m].resources);
  for (const Lane& lane : lanes_) add_component(stats, options_.models[lane.model].name, *lane.engine);
  if (buffers_) stats.buffer_bytes = buffers_->held_bytes();
  stats.num_handed_over = num_handed_over_;
  stats.handed_over_bytes = handed_over_bytes_;
  stats.num_states_in = num_states_in_;
  stats.state_in_bytes = state_in_bytes_;
  stats.state_wait_us = state_wait_us_;
  if (options_.on_stats) options_.on_stats(stats);
  std::lock_guard lock(stats_mutex_);
  stats_ = std::move(stats);
}

wire::WorkerStats Worker::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

}  // namespace mstar::worker
