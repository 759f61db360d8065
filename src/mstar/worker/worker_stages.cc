// Host components: run on the pool or at once, one at a time per request and component.
#include <iterator>

#include "mstar/base/check.h"
#include "mstar/worker/worker.h"

namespace mstar::worker {

using decl::PartitionRef;

Result<std::shared_ptr<decl::HostInputs>> Worker::stage_inputs(const Live& live, PartitionRef partition,
                                                               graph::ReadyNode ready) const {
  const graph::PartitionState& state = *live.partitions[partition.value];
  auto inputs = std::make_shared<decl::HostInputs>();
  inputs->walk = state.walk();
  inputs->is_final = state.is_final(ready.node);
  inputs->params = live.params.get();
  inputs->abandoned = live.abandoned.get();
  const auto ports = state.inputs(ready.node);
  for (std::size_t i = 0; i < ports.size(); ++i) {
    inputs->num_seen.push_back(state.num_seen(ready.node, i));
    auto& port = inputs->ports.emplace_back();
    for (const Value& value : ports[i]) {
      MSTAR_TRY_ASSIGN(HostValue host, value.to_host());
      port.push_back(std::move(host));
    }
  }
  return inputs;
}

void Worker::start_stage(Live& live, PartitionRef partition, graph::ReadyNode ready) {
  const auto& state = *live.partitions[partition.value];
  const auto ref = live.placed->model().at(state.walk()).nodes[ready.node].component;
  const auto& component = live.placed->model().declaration().at(ref);
  if (!component.on_host() || !options_.host_pool)
    return fail(live, internal_error("component '" + component.name() + "' was placed on a worker that cannot run it"));
  Stage& stage = live.stages[ref];
  if (stage.busy) {
    stage.waiting.emplace_back(partition, ready);
    return;
  }
  if (!stage.stage) stage.stage = component.host().make(*live.params);
  if (!stage.stage) return fail(live, internal_error("component '" + component.name() + "' made no stage"));
  auto inputs = stage_inputs(live, partition, ready);
  if (!inputs) return fail(live, std::move(inputs.error()));
  const bool at_once = component.host().is_light || (requests_.size() == 1 && stage.stage->is_brief(**inputs));
  // The job may outlive the request and the worker: it shares what it reads.
  const auto job = [inbox = inbox_, run = stage.stage, params = live.params, abandoned = live.abandoned,
                    inputs = std::move(*inputs), ref, request = live.request, partition, ready] {
    Result<decl::HostOutputs> outputs = internal_error("a host component failed");
    try {
      outputs = *abandoned ? Result<decl::HostOutputs>(cancelled("the request has ended")) : run->run(*inputs);
    } catch (const std::exception& error) {
      outputs = internal_error(std::string("a host component failed: ") + error.what());
    } catch (...) {
    }
    inbox->push(StageDone{request, partition, ref, ready, std::move(outputs)});
  };
  stage.busy = true;
  ++live.num_in_flight;
  if (at_once) return job();
  options_.host_pool->submit(job);
}

void Worker::on(StageDone message) {
  Live* live = find(message.request);
  MSTAR_CHECK(live != nullptr, "a request with a stage in flight was erased");
  guarded(*live, [&] {
    // Void when the request is over or the partition was cancelled.
    if (live->over() || !live->partitions[message.partition.value]->is_current(message.node)) return;
    if (!message.outputs) return fail(*live, std::move(message.outputs.error()));
    std::vector<Values> outputs;
    for (auto& port : message.outputs->ports)
      outputs.emplace_back(std::make_move_iterator(port.begin()), std::make_move_iterator(port.end()));
    complete(*live, message.partition, message.node, std::move(outputs), message.outputs->stop_loops);
  });
  Stage& stage = live->stages[message.component];
  stage.busy = false;
  guarded(*live, [&] { start_waiting_stage(*live, stage); });
  release_in_flight(*live);
}

void Worker::start_waiting_stage(Live& live, Stage& stage) {
  while (!live.over() && !stage.busy && !stage.waiting.empty()) {
    const auto [partition, ready] = stage.waiting.front();
    stage.waiting.pop_front();
    if (live.partitions[partition.value]->is_current(ready)) start_stage(live, partition, ready);
  }
}

}  // namespace mstar::worker
