// From a node's outputs to stops, signals and reports.
#include <algorithm>

#include "mstar/worker/worker.h"

namespace mstar::worker {

using decl::PartitionRef;

namespace {

// Whether a sampled value holds a stop id of the rule, unless those are ignored, or of the request.
bool holds_stop_id(const Values& values, const decl::TokenStop& rule, const decl::SamplingParams& sampling) {
  if (values.empty()) return false;
  for (const std::int32_t token : values.back().host.as<std::int32_t>()) {
    if (!sampling.ignore_eos && std::find(rule.ids.begin(), rule.ids.end(), token) != rule.ids.end()) return true;
    if (std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), token) != sampling.stop_ids.end()) return true;
  }
  return false;
}

// What a signal between workers carries; null when it carries none.
const Values* values_of(const graph::Signal& signal) {
  if (const auto* delivery = std::get_if<graph::Delivery>(&signal)) return &delivery->values;
  if (const auto* kept = std::get_if<graph::KeptValue>(&signal)) return &kept->values;
  if (const auto* items = std::get_if<graph::StreamItems>(&signal)) return &items->items;
  return nullptr;
}

}  // namespace

graph::StopSignals Worker::find_stops(const Live& live, const graph::PartitionState& state, const graph::Node& node,
                                      const std::vector<Values>& outputs, std::vector<graph::LoopIndex>& loops) const {
  const auto& sampling = live.params->sampling;
  graph::StopSignals stops;
  for (const graph::NodeStop& stop : node.stops) {
    const bool at_prefill = stop.loop == graph::kNoLoop;
    if (at_prefill && !stop.rule->last_prefill_flag.empty()) {
      const auto flag = state.flags().find(stop.rule->last_prefill_flag);
      if (flag == state.flags().end() || flag->second == 0) continue;
    }
    const bool hit = holds_stop_id(outputs[stop.output], *stop.rule, sampling);
    if (at_prefill) {
      stops.end_partition |= hit || sampling.max_tokens == 1;
      stops.budget_spent |= !hit && sampling.max_tokens == 1;
    } else if (hit) {
      loops.push_back(stop.loop);
    }
  }
  stops.loops = loops;
  return stops;
}

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
  for (const std::string& name : stopped_loops)
    if (const auto loop = walk.find_loop(name); loop != graph::kNoLoop) loops.push_back(loop);
  const graph::StopSignals stops = find_stops(live, state, node, outputs, loops);
  if (state.complete(ready, outputs, stops, effects_)) send_effects(live, partition, effects_);
  settle_ahead(live, partition);
  collect_ready(live, partition);
}

void Worker::collect_ready(Live& live, PartitionRef partition) {
  auto& state = *live.partitions[partition.value];
  while (!live.over()) {
    const auto ready = state.take_ready();
    if (!ready) return;
    const auto& node = live.placed->model().at(state.walk()).nodes[ready->node];
    const auto lane = lane_of_.find({live.model, node.component.value});
    if (lane == lane_of_.end()) {
      start_stage(live, partition, *ready);
      continue;
    }
    if (live.num_states_due > 0 && !lanes_[lane->second].engine->spec().uses.empty()) {
      live.held.push_back({live.request, partition, *ready, &live, &state});
      continue;
    }
    lanes_[lane->second].queue.push_back({live.request, partition, *ready, &live, &state});
    lanes_[lane->second].blocked = false;
  }
}

void Worker::send_signal(Live& live, WorkerId worker, PartitionRef partition, graph::Signal signal) {
  wire::PartitionMessage message{live.request, {partition, std::move(signal)}};
  if (worker == options_.id) {
    inbox_->push(Inbox(wire::ToWorker(std::move(message))));
    return;
  }
  if (const Values* values = values_of(message.signal.signal))
    for (const Value& value : *values) {
      if (!value.device) continue;
      ++num_handed_over_;
      handed_over_bytes_ += value.device->size_bytes();
    }
  if (!mesh_.to_worker(worker, std::move(message)))
    fail(live, unavailable("worker " + std::to_string(worker.value) + ", which runs a part of the request, is gone"));
}

bool Worker::send_client(Live& live, graph::Effects::Client& client) {
  std::size_t num_bytes = 0;
  for (Value& value : client.values) {
    if (!value.on_host()) {
      auto host = value.to_host();
      if (!host) {
        fail(live, std::move(host.error()));
        return false;
      }
      value = std::move(*host);
    }
    num_bytes += value.host.size_bytes();
  }
  wire::ClientValues& batch = open_batch(num_bytes);
  // First: a part without its values would leave others the wrong ones.
  if (const std::size_t num = batch.values.size() + client.values.size(); num > batch.values.capacity())
    batch.values.reserve(2 * num);
  batch.parts.push_back({live.request, client.port, static_cast<std::uint32_t>(client.values.size()),
                         models_[live.model].resources.cached_tokens(live.request)});
  for (Value& value : client.values) batch.values.push_back(std::move(value.host));
  return true;
}

void Worker::send_effects(Live& live, PartitionRef partition, graph::Effects& effects) {
  for (auto& stop : effects.stops)
    for (const WorkerId worker : stop.peers) send_signal(live, worker, partition, stop.stop);
  for (auto& each : effects.peers) send_signal(live, each.worker, partition, std::move(each.delivery));
  for (auto& each : effects.items) send_signal(live, each.worker, each.to, std::move(each.items));
  for (auto& each : effects.client)
    if (!send_client(live, each)) return;
  // Plans see small values of the host.
  std::vector<std::pair<decl::PortRef, std::vector<HostValue>>> small;
  for (auto& each : effects.kept) {
    for (const WorkerId reader : each.readers) send_signal(live, reader, partition, each.value);
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
  if (effects.done) {
    ++num_ended_walks_;
    tell_conductor(wire::FragmentReport{live.request, options_.id, partition, std::move(*effects.done),
                                        std::move(small), models_[live.model].resources.cached_tokens(live.request)});
  }
  effects.clear();
}

}  // namespace mstar::worker
