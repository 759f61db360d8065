#include "mstar/worker/worker.h"

#include <algorithm>
#include <exception>

#include "mstar/base/check.h"
#include "mstar/base/log.h"

namespace mstar::worker {

using decl::PartitionRef;

Worker::Worker(WorkerOptions options, wire::Mesh& mesh) : options_(std::move(options)), mesh_(mesh) {}

Worker::~Worker() {
  if (thread_.joinable()) {
    inbox_.push(Inbox(wire::ToWorker(wire::Shutdown{})));
    thread_.join();
  }
}

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

}  // namespace

Status Worker::start() {
  models_.resize(options_.models.size());
  if (options_.device) buffers_ = std::make_shared<engine::BufferPool>(*options_.device);
  for (std::uint32_t m = 0; m < options_.models.size(); ++m) {
    const WorkerModel& model = options_.models[m];
    const decl::Decl& declaration = model.compiled->declaration();
    if (model.components.empty()) continue;
    MSTAR_CHECK(options_.device != nullptr, "device components on a worker without a device");
    MSTAR_TRY_ASSIGN(weights::WeightMap weights, weights::WeightMap::create(model.checkpoint, declaration.weight_rules()));
    if (const auto homes = homes_of(declaration); model.checkpoint && !homes.empty()) MSTAR_TRY(weights.check_prefixes(homes));
    MSTAR_TRY_ASSIGN(models_[m].resources,
                     engine::ResourceSet::build(declaration, model.components, model.limits, *options_.device));
    for (const decl::ComponentRef component : model.components) {
      resource::PoolLimits limits = model.limits;
      const auto& spec = declaration.at(component).device();
      limits.max_rows = std::min(limits.max_rows, spec.max_batch_rows);
      if (spec.max_batch_tokens > 0) limits.max_tokens = spec.max_batch_tokens;
      MSTAR_TRY_ASSIGN(auto engine, engine::Engine::create(declaration, component, {limits, buffers_, options_.pool},
                                                           models_[m].resources, weights, *options_.device));
      lane_of_[{m, component.value}] = lanes_.size();
      lanes_.push_back({.model = m, .engine = std::move(engine)});
    }
    if (model.checkpoint) {
      std::vector<std::string> homes;
      for (const decl::ComponentRef component : model.components)
        for (const std::string& prefix : declaration.at(component).device().homes) homes.push_back(prefix);
      if (!homes.empty()) MSTAR_TRY(weights.finish(homes));
      model.checkpoint->release_pages();
    }
  }
  publish_stats();
  thread_ = std::thread([this] { run(); });
  return ok_status();
}

void Worker::run() {
  mesh_.to_conductor(wire::WorkerReady{options_.id});
  // What a library throws (out of memory, say) ends the requests that it touched, not the process.
  while (!stopping_) {
    try {
      for (auto& message : inbox_.take_all()) on_message(std::move(message));
      if (step_once()) continue;
      for (auto& message : inbox_.wait_all(std::chrono::milliseconds(200))) on_message(std::move(message));
    } catch (const std::exception& error) {
      log_error("worker {}: {}; its requests fail", options_.id.value, error.what());
      for (auto& [id, live] : requests_) fail(*live, internal_error(std::string("the worker failed: ") + error.what()));
      for (Lane& lane : lanes_) end_step(lane);
    }
  }
}

void Worker::on_message(Inbox message) {
  if (auto* done = std::get_if<StageDone>(&message)) return on(std::move(*done));
  std::visit([this](auto&& each) { on(std::move(each)); }, std::move(std::get<wire::ToWorker>(message)));
}

Worker::Live* Worker::find(RequestId request) {
  const auto it = requests_.find(request);
  return it == requests_.end() ? nullptr : it->second.get();
}

void Worker::on(wire::AddRequest message) {
  auto replay = early_.take(message.request);
  if (replay.removed || requests_.count(message.request)) return;
  ModelState& model = models_[message.model];
  const graph::CompiledModel& compiled = *options_.models[message.model].compiled;
  auto live = std::make_unique<Live>();
  live->request = message.request;
  live->model = message.model;
  live->params = message.params;
  auto& placed = model.placements[message.placement];
  if (!placed) {
    auto table = graph::RequestPlacement::from_table(compiled, message.placement);
    auto made = table ? graph::PlacedModel::place(compiled, std::move(*table)) : std::move(table.error());
    if (!made) {
      requests_.emplace(message.request, std::move(live));
      return fail(*find(message.request), std::move(made.error()));
    }
    placed = std::move(*made);
  }
  live->placed = placed;
  live->partitions.resize(compiled.partitions().size());
  for (std::uint16_t p = 0; p < live->partitions.size(); ++p) {
    const auto workers = placed->workers(PartitionRef(p));
    if (std::find(workers.begin(), workers.end(), options_.id) == workers.end()) continue;
    live->partitions[p] = std::make_unique<graph::PartitionState>(placed, options_.id, PartitionRef(p));
    const auto& wanted = compiled.at(PartitionRef(p)).request_inputs;
    for (const auto& [port, values] : message.inputs)
      if (std::find(wanted.begin(), wanted.end(), port) != wanted.end()) live->partitions[p]->give_request_input(port, values);
  }
  Live& added = *(requests_[message.request] = std::move(live));
  if (Status claimed = model.resources.add_request(added.request, *added.params); !claimed) return fail(added, claimed.error());
  publish_stats();
  for (auto& signal : replay.signals) on(wire::PartitionMessage{added.request, std::move(signal)});
}

void Worker::on(wire::PartitionMessage message) {
  Live* live = find(message.request);
  if (!live) {
    if (!early_.hold(message.request, std::move(message.signal)))
      mesh_.to_conductor(wire::RequestFailed{message.request, internal_error("too many early signals")});
    return;
  }
  if (live->failed || live->removing) return;
  const PartitionRef partition = message.signal.partition;
  auto& state = live->partitions[partition.value];
  if (!state) return;
  if (auto* start = std::get_if<graph::StartPass>(&message.signal.signal)) {
    if (Status started = state->start(std::move(*start)); !started) return fail(*live, started.error());
  } else {
    effects_.clear();
    // Refused signals are stale or repeated: not an error.
    if (auto applied = state->apply(std::move(message.signal.signal), effects_); !applied) return fail(*live, std::move(applied.error()));
    send_effects(*live, partition, effects_);
  }
  collect_ready(*live, partition);
}

void Worker::on(wire::CancelPartition message) {
  Live* live = find(message.request);
  if (!live || !live->partitions[message.partition.value]) return;
  if (auto done = live->partitions[message.partition.value]->cancel(message.drop_streams))
    mesh_.to_conductor(wire::FragmentReport{live->request, options_.id, message.partition, std::move(*done), {}});
}

void Worker::on(wire::RemoveRequest message) {
  Live* live = find(message.request);
  if (!live) {
    early_.hold(message.request, {PartitionRef(0), graph::Removal{}});
    mesh_.to_conductor(wire::Removed{message.request, options_.id});
    return;
  }
  live->removing = true;
  if (live->num_in_flight == 0) finish_removal(*live);
}

void Worker::finish_removal(Live& live) {
  const RequestId request = live.request;
  models_[live.model].resources.remove_request(request);
  for (Lane& lane : lanes_) {
    lane.engine->forget(request);
    std::erase_if(lane.queue, [&](const Pending& each) { return each.request == request; });
  }
  requests_.erase(request);
  unblock_lanes();
  publish_stats();
  mesh_.to_conductor(wire::Removed{request, options_.id});
}

void Worker::collect_ready(Live& live, PartitionRef partition) {
  auto& state = *live.partitions[partition.value];
  while (const auto ready = state.take_ready()) {
    const auto& node = live.placed->model().at(state.walk()).nodes[ready->node];
    const auto lane = lane_of_.find({live.model, node.component.value});
    if (lane != lane_of_.end()) {
      lanes_[lane->second].queue.push_back({live.request, partition, *ready});
      lanes_[lane->second].blocked = false;
    } else {
      start_stage(live, partition, *ready);
    }
  }
}

void Worker::start_stage(Live& live, PartitionRef partition, graph::ReadyNode ready) {
  auto& state = *live.partitions[partition.value];
  const auto& node = live.placed->model().at(state.walk()).nodes[ready.node];
  const auto& component = live.placed->model().declaration().at(node.component);
  if (!component.on_host() || !options_.host_pool)
    return fail(live, internal_error("component '" + component.name() + "' was placed on a worker that cannot run it"));
  if (live.stage_busy[node.component.value]) {  // one run at a time per request: stages keep state
    live.waiting_stages.emplace_back(partition, ready);
    return;
  }
  auto& stage = live.stages[node.component.value];
  if (!stage) stage = component.host().make(*live.params);
  auto inputs = std::make_shared<decl::HostInputs>();
  inputs->walk = state.walk();
  inputs->is_final = state.is_final(ready.node);
  inputs->params = live.params.get();
  for (const Values& values : state.inputs(ready.node)) {
    auto& port = inputs->ports.emplace_back();
    for (const Value& value : values) {
      auto host = value.to_host();
      if (!host) return fail(live, std::move(host.error()));
      port.push_back(std::move(*host));
    }
  }
  live.stage_busy[node.component.value] = true;
  ++live.num_in_flight;
  // The stage and the parameters stay alive: a request with work in flight is not erased.
  options_.host_pool->submit([this, stage = stage.get(), inputs, request = live.request, partition, ready] {
    Result<decl::HostOutputs> outputs = internal_error("not run");
    try {
      outputs = stage->run(*inputs);
    } catch (const std::exception& error) {
      outputs = internal_error(std::string("a host component failed: ") + error.what());
    }
    inbox_.push(StageDone{request, partition, ready, std::move(outputs)});
  });
}

void Worker::on(StageDone message) {
  Live* live = find(message.request);
  MSTAR_CHECK(live != nullptr, "a request with a stage in flight was erased");
  --live->num_in_flight;
  if (live->removing) {
    if (live->num_in_flight == 0) finish_removal(*live);
    return;
  }
  if (live->failed) return;
  auto& state = *live->partitions[message.partition.value];
  if (!message.outputs) return fail(*live, std::move(message.outputs.error()));
  if (state.is_current(message.node)) {
    const auto component = live->placed->model().at(state.walk()).nodes[message.node.node].component;
    live->stage_busy[component.value] = false;
    std::vector<Values> outputs;
    for (auto& port : message.outputs->ports) {
      Values& values = outputs.emplace_back();
      for (HostValue& value : port) values.emplace_back(std::move(value));
    }
    complete(*live, message.partition, message.node, std::move(outputs), message.outputs->stop_loops);
  } else {
    live->stage_busy.clear();  // the partition was cancelled: whatever ran is void
  }
  auto waiting = std::exchange(live->waiting_stages, {});
  for (const auto& [partition, ready] : waiting)
    if (!live->failed && live->partitions[partition.value]->is_current(ready)) start_stage(*live, partition, ready);
}

// ---- device steps ------------------------------------------------------------------------------------------------------

Worker::Lane* Worker::next_lane() {
  Lane* best = nullptr;
  for (Lane& lane : lanes_) {
    if (!lane.step && (lane.queue.empty() || lane.blocked)) continue;
    if (!best || lane.last_turn < best->last_turn) best = &lane;
  }
  return best;
}

bool Worker::step_once() {
  Lane* lane = next_lane();
  if (!lane) return false;
  lane->last_turn = ++turn_;
  if (!lane->step && !begin_step(*lane)) return true;
  auto launched = lane->engine->advance(*lane->step);
  if (!launched || *launched) end_step(*lane);
  return true;
}

bool Worker::begin_step(Lane& lane) {
  std::vector<engine::RowInputs> rows;
  std::vector<Pending> taken;
  const std::size_t limit = static_cast<std::size_t>(lane.engine->spec().max_batch_rows);
  while (!lane.queue.empty() && rows.size() < limit) {
    Pending pending = lane.queue.front();
    lane.queue.pop_front();
    Live* live = find(pending.request);
    if (!live || live->failed || live->removing) continue;
    auto& state = *live->partitions[pending.partition.value];
    if (!state.is_current(pending.node)) continue;
    const auto& node = live->placed->model().at(state.walk()).nodes[pending.node.node];
    const auto path = state.path(pending.node.node);
    engine::RowInputs row{.request = live->request, .params = live->params, .walk = state.walk(), .run = node.run};
    const auto inputs = state.inputs(pending.node.node);
    row.ports.assign(inputs.begin(), inputs.end());
    if (!state.flags().empty()) row.flags = std::make_shared<const std::map<std::string, std::int64_t>>(state.flags());
    row.iteration = path.depth ? path.at[path.depth - 1] : 0;
    row.is_final = state.is_final(pending.node.node);
    rows.push_back(std::move(row));
    taken.push_back(pending);
  }
  if (rows.empty()) return false;
  auto prepared = lane.engine->prepare(std::move(rows));
  const auto claim = [&](RequestId request) {
    const auto it = std::find_if(taken.begin(), taken.end(), [&](const Pending& p) { return p.request == request; });
    const Pending pending = *it;
    taken.erase(it);
    return pending;
  };
  for (auto& failed : prepared.failed) {
    claim(failed.request);
    if (Live* live = find(failed.request)) fail(*live, std::move(*failed.error));
  }
  for (auto it = prepared.waiting.rbegin(); it != prepared.waiting.rend(); ++it) lane.queue.push_front(claim(it->request));
  lane.step = std::move(prepared.step);
  lane.rows = std::move(taken);
  lane.blocked = !lane.step && !lane.queue.empty();
  for (const Pending& pending : lane.rows) ++find(pending.request)->num_in_flight;
  return lane.step != nullptr;
}

void Worker::end_step(Lane& lane) {
  if (!lane.step) return;
  auto results = lane.engine->finish(std::move(lane.step));
  auto rows = std::move(lane.rows);
  lane.rows.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Live* live = find(rows[r].request);
    MSTAR_CHECK(live != nullptr, "a request with a row in flight was erased");
    --live->num_in_flight;
    if (live->removing) {
      if (live->num_in_flight == 0) finish_removal(*live);
    } else if (live->failed) {
      continue;
    } else if (results[r].error) {
      fail(*live, std::move(*results[r].error));
    } else {
      complete(*live, rows[r].partition, rows[r].node, std::move(results[r].outputs), results[r].stopped_loops);
    }
  }
  unblock_lanes();
  publish_stats();
}

void Worker::unblock_lanes() {
  for (Lane& lane : lanes_) lane.blocked = false;
}

// ---- results -----------------------------------------------------------------------------------------------------------

namespace {

// Whether a sampled value holds a stop id of the rule or of the request.
bool holds_stop_id(const Values& values, const decl::TokenStop& rule, const decl::SamplingParams& sampling) {
  if (values.empty() || sampling.ignore_eos) return false;
  for (const std::int32_t token : values.back().host.as<std::int32_t>()) {
    if (std::find(rule.ids.begin(), rule.ids.end(), token) != rule.ids.end()) return true;
    if (std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), token) != sampling.stop_ids.end()) return true;
  }
  return false;
}

}  // namespace

void Worker::complete(Live& live, PartitionRef partition, graph::ReadyNode ready, std::vector<Values> outputs,
                      const std::vector<std::string>& stopped_loops) {
  auto& state = *live.partitions[partition.value];
  if (!state.is_current(ready)) return;
  const graph::CompiledWalk& walk = live.placed->model().at(state.walk());
  const graph::Node& node = walk.nodes[ready.node];
  if (outputs.size() != node.run->outputs.size())
    return fail(live, internal_error("component '" + live.placed->model().declaration().at(node.component).name() +
                                     "' gave " + std::to_string(outputs.size()) + " outputs, its run declares " +
                                     std::to_string(node.run->outputs.size())));
  std::vector<graph::LoopIndex> loops;
  graph::StopSignals stops;
  for (const std::string& name : stopped_loops)
    if (const auto loop = walk.find_loop(name); loop != graph::kNoLoop) loops.push_back(loop);
  const auto& sampling = live.params->sampling;
  for (const graph::NodeStop& stop : node.stops) {
    const bool at_prefill = stop.loop == graph::kNoLoop;
    if (at_prefill && !stop.rule->last_prefill_flag.empty()) {
      const auto flag = state.flags().find(stop.rule->last_prefill_flag);
      if (flag == state.flags().end() || flag->second == 0) continue;
    }
    const bool hit = holds_stop_id(outputs[stop.output], *stop.rule, sampling);
    if (at_prefill) {
      stops.end_partition |= hit || sampling.max_tokens == 1;
    } else if (hit) {
      loops.push_back(stop.loop);
    }
  }
  stops.loops = loops;
  if (state.complete(ready, outputs, stops, effects_)) send_effects(live, partition, effects_);
  if (!live.failed) collect_ready(live, partition);
}

void Worker::send_effects(Live& live, PartitionRef partition, graph::Effects& effects) {
  const auto peer = [&](WorkerId worker, PartitionRef to, graph::Signal signal) {
    if (worker == options_.id) {
      inbox_.push(Inbox(wire::ToWorker(wire::PartitionMessage{live.request, {to, std::move(signal)}})));
    } else {
      mesh_.to_worker(worker, wire::PartitionMessage{live.request, {to, std::move(signal)}});
    }
  };
  for (auto& stop : effects.stops)
    for (const WorkerId worker : stop.peers) peer(worker, partition, stop.stop);
  for (auto& each : effects.peers) peer(each.worker, partition, std::move(each.delivery));
  for (auto& each : effects.items) peer(each.worker, each.to, std::move(each.items));
  for (auto& each : effects.client) {
    wire::ClientValue out{live.request, each.port, {}};
    for (const Value& value : each.values) {
      auto host = value.to_host();
      if (!host) return fail(live, std::move(host.error()));
      out.values.push_back(std::move(*host));
    }
    mesh_.to_conductor(std::move(out));
  }
  std::vector<std::pair<decl::PortRef, std::vector<HostValue>>> small;
  for (auto& each : effects.kept) {
    for (const WorkerId reader : each.readers) peer(reader, partition, each.value);
    std::size_t bytes = 0;
    bool on_host = true;
    for (const Value& value : each.value.values) {
      on_host &= value.on_host();
      bytes += value.host.size_bytes();
    }
    if (!on_host || bytes > wire::kMaxPlanValueBytes) continue;
    auto& list = small.emplace_back(each.value.port, std::vector<HostValue>{}).second;
    for (const Value& value : each.value.values) list.push_back(value.host);
  }
  if (effects.done)
    mesh_.to_conductor(wire::FragmentReport{live.request, options_.id, partition, std::move(*effects.done), std::move(small)});
  effects.clear();
}

void Worker::fail(Live& live, Error error) {
  if (live.failed) return;
  live.failed = true;
  mesh_.to_conductor(wire::RequestFailed{live.request, std::move(error)});
}

void Worker::publish_stats() {
  WorkerStats stats;
  stats.num_requests = static_cast<std::int64_t>(requests_.size());
  for (const ModelState& model : models_)
    for (auto& usage : model.resources.usage()) stats.resources.push_back(std::move(usage));
  for (const Lane& lane : lanes_) {
    stats.components[lane.engine->spec().name] = lane.engine->counters();
    stats.weight_bytes += lane.engine->weight_bytes();
    stats.arena_bytes += lane.engine->arena_bytes();
  }
  if (buffers_) stats.buffer_bytes = buffers_->held_bytes();
  std::lock_guard lock(stats_mutex_);
  stats_ = std::move(stats);
}

WorkerStats Worker::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

}  // namespace mstar::worker
