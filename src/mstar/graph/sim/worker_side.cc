// Virtual workers: steps, what they read, where their effects go.
#include <algorithm>

#include "mstar/graph/sim/simulator_internal.h"

namespace mstar::graph::sim {

bool Simulator::can_work(const Worker& worker) {
  if (!worker.running.empty()) return true;
  return std::any_of(worker.states.begin(), worker.states.end(),
                     [](const auto& s) { return s.second.num_ready() > 0; });
}

void Simulator::drop_work(Worker& worker, decl::PartitionRef partition) {
  const auto of = [&](const auto& each) { return each.partition == partition; };
  for (const Running& each : worker.running)
    if (of(each)) worker.ledger.roll_back(partition, each.node.ticket);
  for (const Ahead& each : worker.ahead)
    if (of(each)) worker.ledger.roll_back(partition, each.step.ticket);
  worker.running.erase(std::remove_if(worker.running.begin(), worker.running.end(), of), worker.running.end());
  worker.ahead.erase(std::remove_if(worker.ahead.begin(), worker.ahead.end(), of), worker.ahead.end());
}

void Simulator::admit(std::size_t w, const NewRequest& request) {
  Worker& worker = workers_[w];
  worker.known = true;
  const WorkerId self(static_cast<std::uint32_t>(w));
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    const auto members = placed_.workers(ref(p));
    if (!std::count(members.begin(), members.end(), self)) continue;
    PartitionState& state = worker.states.emplace(ref(p), PartitionState(owner(), self, ref(p))).first->second;
    for (const auto& [port, values] : request.inputs) {
      const auto readers = placed_.readers(ref(p), port);
      if (std::count(readers.begin(), readers.end(), self)) state.give_request_input(port, values);
    }
  }
  EarlySignals::Replay replay = worker.early.take(RequestId(1));
  for (PartitionSignal& signal : replay.signals) apply(w, std::move(signal));
}

void Simulator::apply(std::size_t w, PartitionSignal signal) {
  Worker& worker = workers_[w];
  if (std::holds_alternative<Removal>(signal.signal)) {
    worker.removed = true;
    worker.states.clear();
    worker.running.clear();
    worker.ahead.clear();
    worker.ledger.remove();
    return;
  }
  const auto state = worker.states.find(signal.partition);
  if (state == worker.states.end()) return fault("a signal reached a worker without the partition");
  const bool is_start = std::holds_alternative<StartPass>(signal.signal);
  Result<Accepted> accepted = state->second.apply(std::move(signal.signal), effects_);
  if (!accepted) return fault((is_start ? "start: " : "signal: ") + accepted.error().message);
  if (*accepted == Accepted::refused) ++out_.refused;
  publish(w, signal.partition);
  void_running(worker, signal.partition);
  settle_ahead(worker, signal.partition);
}

// A stop of a peer may end steps that run here.
void Simulator::void_running(Worker& worker, decl::PartitionRef partition) {
  const PartitionState& state = worker.states.at(partition);
  worker.running.erase(std::remove_if(worker.running.begin(), worker.running.end(),
                                      [&](const Running& r) {
                                        const bool is_void = r.partition == partition && !state.is_current(r.node);
                                        if (is_void) worker.ledger.roll_back(partition, r.node.ticket);
                                        return is_void;
                                      }),
                       worker.running.end());
}

void Simulator::work(std::size_t w) {
  Worker& worker = workers_[w];
  if (chance(options_.ahead)) try_ahead(worker);
  if (!worker.ahead.empty() && chance(0.1)) {  // given up before it is known whether it was right
    Ahead& ahead = worker.ahead[pick(worker.ahead.size())];
    worker.states.at(ahead.partition).rollback_ahead(ahead.step.node);
    worker.ledger.roll_back(ahead.partition, ahead.step.ticket);
    ++out_.ahead_dropped;
    worker.ahead.erase(worker.ahead.begin() + (&ahead - worker.ahead.data()));
  }
  std::vector<decl::PartitionRef> ready;
  for (const auto& [partition, state] : worker.states)
    if (state.num_ready()) ready.push_back(partition);
  const std::size_t choices = ready.size() + worker.running.size();
  if (choices == 0) return;
  const std::size_t choice = pick(choices);
  if (choice < ready.size()) {
    PartitionState& state = worker.states.at(ready[choice]);
    const std::optional<ReadyNode> node = state.take_ready();
    if (!node) return fault("num_ready without a ready node");
    begin(worker, ready[choice], *node);
  } else {
    complete(w, choice - ready.size());
  }
}

void Simulator::begin(Worker& worker, decl::PartitionRef partition, ReadyNode node) {
  const PartitionState& state = worker.states.at(partition);
  if (!worker.ledger.in_flight(partition, node.ticket)) worker.ledger.admit(partition, node.ticket);
  worker.running.push_back({partition, node, state.path(node.node)});
  check_not_stopped(state, partition, node.node);
  check_inputs(state, partition, node.node);
}

// No step begins in an iteration that a stop, wherever it was given, has ruled out.
void Simulator::check_not_stopped(const PartitionState& state, decl::PartitionRef partition, NodeIndex node) {
  const Node& spec = model_.at(state.walk()).nodes[node];
  const LoopPath path = state.path(node);
  for (std::size_t d = 0; d < spec.depth; ++d) {
    std::vector<std::int32_t> key = {partition.value, spec.loops[d]};
    key.insert(key.end(), path.at.begin(), path.at.begin() + static_cast<std::ptrdiff_t>(d));
    const auto stop = stop_at_.find(key);
    if (stop != stop_at_.end() && path.at[d] > stop->second)
      fault(where(partition, state, node) + " runs past the stop of its loop");
  }
}

std::string Simulator::where(decl::PartitionRef partition, const PartitionState& state, NodeIndex node) const {
  const CompiledWalk& walk = model_.at(state.walk());
  (void)partition;
  return decl_.at(state.walk()).name + " pass " + std::to_string(state.pass()) + " node " + std::to_string(node) +
         " '" + decl_.at(walk.nodes[node].component).name() + "' " + print(state.path(node));
}

void Simulator::check_inputs(const PartitionState& state, decl::PartitionRef partition, NodeIndex node) {
  const CompiledWalk& walk = model_.at(state.walk());
  const auto inputs = state.inputs(node);
  bool any_final = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Slot& slot = walk.slot(node, i);
    const Ids got = ids_of(inputs[i]);
    const std::string at_port = where(partition, state, node) + " input '" + decl_.at(slot.port).name + "' ";
    if (slot.stream) {
      any_final = check_chunk(state, partition, node, i, got, at_port) || any_final;
      continue;
    }
    Ids want;
    if (!oracle_.expected(partition, node, i, state.path(node), want)) want = external(partition, slot.port);
    if (got != want) fault(at_port + "holds " + print(got) + ", must hold " + print(want));
  }
  if (any_final != state.is_final(node)) fault(where(partition, state, node) + " is_final is wrong");
}

Ids Simulator::external(decl::PartitionRef partition, decl::PortRef port) {
  if (plan_given_[partition].count(port)) return plan_given_[partition][port];
  const auto kept = at(partition).kept.find(port);
  return kept == at(partition).kept.end() ? Ids{0} : kept->second;
}

bool Simulator::check_chunk(const PartitionState& state, decl::PartitionRef partition, NodeIndex node,
                            std::size_t input, const Ids& got, const std::string& at_port) {
  const decl::PortRef port = model_.at(state.walk()).slot(node, input).port;
  StreamRecord& stream = streams_[port];
  std::size_t& consumed = stream.consumed[partition];
  const auto seen = static_cast<std::size_t>(state.num_seen(node, input));
  if (seen > consumed || seen > got.size()) return fault(at_port + "has more context than was ever there"), false;
  const std::size_t end = consumed - seen + got.size();
  if (end > stream.made.size() ||
      !std::equal(got.begin(), got.end(), stream.made.begin() + static_cast<std::ptrdiff_t>(consumed - seen)))
    return fault(at_port + "chunk is not the next of its stream"), false;
  consumed = end;
  if (stream.finals[partition]) fault(at_port + "chunk after the final one");
  const bool last = state.is_final(node) && all_consumed(partition, port);
  const int index = model_.at(partition).find_stream(port);
  const auto* fixed =
      std::get_if<decl::FixedChunks>(&model_.at(partition).streams[static_cast<std::size_t>(index)].policy);
  if (fixed && fixed->continue_after_done) return false;
  if (state.is_final(node)) {
    if (!last) fault(at_port + "final chunk before the end of the stream");
    ++stream.finals[partition];
  }
  return state.is_final(node);
}

bool Simulator::all_consumed(decl::PartitionRef partition, decl::PortRef port) {
  return stream_total_.count(port) && streams_[port].consumed[partition] == streams_[port].made.size();
}

void Simulator::complete(std::size_t w, std::size_t index) {
  Worker& worker = workers_[w];
  const Running run = worker.running[index];
  worker.running.erase(worker.running.begin() + static_cast<std::ptrdiff_t>(index));
  PartitionState& state = worker.states.at(run.partition);
  if (!state.is_current(run.node)) return fault("a running step is void without a reason");
  if (state.path(run.node.node) != run.path) return fault("a loop moved on under a running step");
  const CompiledWalk& walk = model_.at(state.walk());
  const Node& node = walk.nodes[run.node.node];
  std::vector<Values> outputs(node.run->outputs.size());
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const Output& out = walk.outputs_of(run.node.node)[o];
    const bool needed = out.keep || !out.streams_to.empty() || out.counts_token || has_edge(out);
    if (is_withheld(state, node, o) || (!needed && chance(0.2))) continue;
    outputs[o].push_back(make());
    if (!needed && chance(0.2)) outputs[o].push_back(make());
    oracle_.made(run.partition, run.node.node, static_cast<int>(o), run.path, ids_of(outputs[o]));
  }
  std::vector<LoopIndex> stops;
  StopSignals signals;
  for (const NodeStop& stop : node.stops) {
    const std::string& flag = stop.rule->last_prefill_flag;
    if (stop.loop == kNoLoop) {
      const bool applies = flag.empty() || state.flags().count(flag);
      signals.end_partition =
          signals.end_partition || (applies && (params_.sampling.max_tokens == 1 || chance(options_.stop)));
    } else if (chance(options_.stop)) {
      stops.push_back(stop.loop);
    }
  }
  for (int d = 0; d < node.depth; ++d) {
    const LoopIndex loop = node.loops[static_cast<std::size_t>(d)];
    if (std::holds_alternative<decl::ComponentSignal>(walk.loops[loop].spec->stop) && chance(options_.stop))
      stops.push_back(loop);
  }
  signals.loops = stops;
  out_.stopped_loops += static_cast<std::int64_t>(stops.size());
  note_stops(run, state, walk, node, stops);
  const std::int32_t pass = state.pass();
  for (std::size_t o = 0; o < outputs.size(); ++o)
    if (decl_.at(node.run->outputs[o]).counts_token)
      tokens_made_[node.run->outputs[o]] += static_cast<std::int64_t>(outputs[o].size());
  if (!state.complete(run.node, outputs, signals, effects_)) return fault("a current step was refused");
  worker.ledger.commit(run.partition, run.node.ticket);
  ++out_.steps;
  out_.num_tokens += effects_.num_tokens;
  if (effects_.done && effects_.done->pass != pass) fault("a fragment reports another pass");
  publish(w, run.partition);
  if (chance(0.05)) {
    Effects again;
    if (state.complete(run.node, outputs, {}, again)) fault("a step was completed twice");
  }
  settle_ahead(worker, run.partition);
}

// The earliest iteration in which a loop was told to stop, by the iterations round it.
void Simulator::note_stops(const Running& run, const PartitionState& state, const CompiledWalk& walk, const Node& node,
                           const std::vector<LoopIndex>& stops) {
  std::vector<LoopIndex> all = stops;
  if (state.is_final(run.node.node))
    for (int d = 0; d < node.depth; ++d) all.push_back(node.loops[static_cast<std::size_t>(d)]);
  for (const LoopIndex loop : all) {
    const auto depth = static_cast<std::size_t>(walk.loops[loop].depth);
    std::vector<std::int32_t> key = {run.partition.value, loop};
    key.insert(key.end(), run.path.at.begin(), run.path.at.begin() + static_cast<std::ptrdiff_t>(depth - 1));
    const std::int32_t iteration = run.path.at[depth - 1];
    const auto [entry, fresh] = stop_at_.emplace(key, iteration);
    if (!fresh) entry->second = std::min(entry->second, iteration);
  }
}

bool Simulator::has_edge(const Output& out) {
  const auto any = [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](EdgeIndex e) { return e != kNoEdge; });
  };
  return any(out.forward) || any(out.back);
}

void Simulator::try_ahead(Worker& worker) {
  if (worker.running.empty()) return;
  const Running& run = worker.running[pick(worker.running.size())];
  PartitionState& state = worker.states.at(run.partition);
  const CompiledWalk& walk = model_.at(state.walk());
  const auto node = static_cast<NodeIndex>(pick(walk.nodes.size()));
  std::optional<AheadStep> step = state.begin_ahead(chance(0.5) ? run.node.node : node);
  if (!step) return;
  Ahead ahead{run.partition, std::move(*step), {}, {}};
  for (std::size_t i = 0; i < ahead.step.inputs.size(); ++i) {
    const AheadInput& input = ahead.step.inputs[i];
    if (input.from == kNoNode) {
      ahead.known[i] = ids_of(*input.values);
      continue;
    }
    const auto feeder = std::find_if(worker.running.begin(), worker.running.end(), [&](const Running& r) {
      return r.partition == run.partition && r.node.node == input.from;
    });
    if (feeder == worker.running.end()) return fault("a step ahead is fed by a node that does not run");
    ahead.feeders.push_back(feeder->node);
  }
  // Nodes of the iteration that feed nothing must end too.
  for (const Running& each : worker.running)
    if (each.partition == run.partition) ahead.feeders.push_back(each.node);
  worker.ledger.admit(ahead.partition, ahead.step.ticket);
  worker.ahead.push_back(std::move(ahead));
}

void Simulator::settle_ahead(Worker& worker, decl::PartitionRef partition) {
  PartitionState& state = worker.states.at(partition);
  for (std::size_t a = 0; a < worker.ahead.size();) {
    Ahead& ahead = worker.ahead[a];
    const bool waits = std::any_of(ahead.feeders.begin(), ahead.feeders.end(),
                                   [&](const ReadyNode& n) { return state.is_current(n); });
    if (ahead.partition != partition || waits) {
      ++a;
      continue;
    }
    if (state.confirm_ahead(ahead.step.node)) {
      ++out_.ahead_kept;
      if (state.path(ahead.step.node) != ahead.step.path)
        fault("a step ahead ran in another iteration than it was made for");
      const auto inputs = state.inputs(ahead.step.node);
      for (const auto& [i, ids] : ahead.known)
        if (ids_of(inputs[i]) != ids)
          fault(where(partition, state, ahead.step.node) + " a step ahead saw another value");
      if (state.is_final(ahead.step.node) != ahead.step.is_final) fault("a step ahead saw another is_final");
      begin(worker, partition, {ahead.step.node, ahead.step.ticket});
    } else {
      ++out_.ahead_dropped;
      worker.ledger.roll_back(partition, ahead.step.ticket);
    }
    worker.ahead.erase(worker.ahead.begin() + static_cast<std::ptrdiff_t>(a));
  }
}

void Simulator::publish(std::size_t w, decl::PartitionRef partition) {
  for (const Effects::Stop& stop : effects_.stops)
    for (const WorkerId peer : stop.peers) send(w, peer.value, PartitionSignal{partition, stop.stop});
  for (Effects::Peer& peer : effects_.peers)
    send(w, peer.worker.value, PartitionSignal{partition, std::move(peer.delivery)});
  for (Effects::Items& items : effects_.items) {
    StreamRecord& record = streams_[items.items.port];
    const Ids ids = ids_of(items.items.items);
    const auto base = static_cast<std::size_t>(items.items.first_index);
    if (base == record.made.size()) record.made.insert(record.made.end(), ids.begin(), ids.end());
    if (base + ids.size() > record.made.size() ||
        !std::equal(ids.begin(), ids.end(), record.made.begin() + static_cast<std::ptrdiff_t>(base)))
      fault("stream '" + decl_.at(items.items.port).name + "' is numbered wrongly");
    if (items.worker.valid()) send(w, items.worker.value, PartitionSignal{items.to, std::move(items.items)});
  }
  for (const Effects::Client& client : effects_.client) {
    Ids& ids = at(partition).client[client.port];
    for (const std::int64_t id : ids_of(client.values)) ids.push_back(id);
    out_.client_values += static_cast<std::int64_t>(client.values.size());
    if (decl_.at(client.port).counts_token)
      tokens_delivered_[client.port] += static_cast<std::int64_t>(client.values.size());
  }
  for (Effects::Kept& kept : effects_.kept) {
    for (const WorkerId reader : kept.readers) send(w, reader.value, PartitionSignal{partition, kept.value});
    send(w, num_workers_, KeptReport{partition, std::move(kept.value)});
  }
  if (effects_.done)
    send(w, num_workers_, Report{WorkerId(static_cast<std::uint32_t>(w)), partition, std::move(*effects_.done)});
  effects_.clear();
}

// A token port is left empty in a prefill that is not the last one.
bool Simulator::is_withheld(const PartitionState& state, const Node& node, std::size_t output) {
  return std::any_of(node.stops.begin(), node.stops.end(), [&](const NodeStop& stop) {
    const std::string& flag = stop.rule->last_prefill_flag;
    return stop.loop == kNoLoop && stop.output == output && !flag.empty() && !state.flags().count(flag);
  });
}

}  // namespace mstar::graph::sim
