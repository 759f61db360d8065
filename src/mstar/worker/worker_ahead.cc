// Running ahead: rows that are launched from outputs that the host has not seen, and what becomes of them.
#include <algorithm>

#include "mstar/worker/worker.h"

namespace mstar::worker {

using decl::PartitionRef;
using graph::NodeIndex;

void Worker::find_followers(std::uint32_t model) {
  for (const graph::CompiledWalk& walk : options_.models[model].compiled->walks()) {
    auto& by_node = models_[model].followers.emplace_back(walk.nodes.size());
    for (const graph::Edge& edge : walk.edges) {
      if (edge.from == graph::kNoNode) continue;
      std::vector<NodeIndex>& fed = by_node[edge.from];
      for (const graph::Target& target : edge.targets)
        if (std::find(fed.begin(), fed.end(), target.node) == fed.end()) fed.push_back(target.node);
    }
  }
}

bool Worker::has_followers(const Lane& lane) const {
  if (!lane.runs_ahead) return false;
  for (const Batch& batch : in_flight_)
    for (const Follower& each : batch.followers)
      if (each.lane == &lane && !each.tried) return true;
  return false;
}

// A row whose forward has failed or has stopped a loop promises nothing: what follows it is known only when it is read.
void Worker::promise_outputs(Batch& batch) {
  const PhaseScope scope(options_.profile, Phase::promise);
  for (const engine::RowResult& result : batch.lane->steps.promised(*batch.step)) {
    const Row& row = batch.rows[result.tag];
    Live* const live = row.live;
    if (!live || live->over() || row.standing == Standing::unwanted) continue;
    if (result.error || !result.stopped_loops.empty()) continue;
    const auto& state = *live->partitions[row.pending.partition.value];
    if (!state.walk().valid()) continue;
    live->promises.push_back({row.pending.partition, row.pending.node, &result});
    const graph::CompiledWalk& walk = live->placed->model().at(state.walk());
    for (const NodeIndex node : models_[live->model].followers[walk.ref.value][row.pending.node.node]) {
      const auto lane = lane_of_.find({live->model, walk.nodes[node].component.value});
      if (lane != lane_of_.end() && lanes_[lane->second].runs_ahead)
        batch.followers.push_back({&lanes_[lane->second], row.pending.request, row.pending.partition, node});
    }
  }
}

void Worker::withdraw_promises(const Batch& batch) {
  for (const Row& row : batch.rows)
    if (row.live)
      std::erase_if(row.live->promises, [&](const Promise& each) {
        return each.partition == row.pending.partition && each.node.ticket == row.pending.node.ticket;
      });
}

void Worker::take_followers(Lane& lane, std::uint32_t group, std::vector<engine::RowInputs>& inputs) {
  for (Batch& batch : in_flight_)
    for (Follower& each : batch.followers) {
      if (!lane.engine->spec().chunked_prefill &&
          inputs.size() >= static_cast<std::size_t>(lane.engine->spec().max_batch_rows))
        return;
      if (each.lane != &lane || each.tried) continue;
      if (const auto of = group_of(lane, each.request, each.partition); of && *of != group) continue;
      each.tried = true;
      try_ahead(lane, each, inputs);
    }
}

void Worker::try_ahead(Lane& lane, const Follower& follower, std::vector<engine::RowInputs>& inputs) {
  Live* const live = find(follower.request);
  if (!live || live->over() || live->num_unwanted > 0) return;
  auto& state = *live->partitions[follower.partition.value];
  auto step = state.begin_ahead(follower.node);
  if (!step) return;
  auto row = ahead_inputs(*live, follower, *step);
  if (!row || (!lane.engine->spec().uses.empty() && clashes(*row, inputs))) return state.rollback_ahead(follower.node);
  add_row(lane, *live,
          {.pending = {follower.request, follower.partition, {follower.node, step->ticket}},
           .standing = Standing::ahead,
           .waits_for = std::move(step->waits_for)},
          std::move(*row), inputs);
}

// Nothing unless every node that the step waits for has been launched here and promises what is asked of it.
std::optional<engine::RowInputs> Worker::ahead_inputs(const Live& live, const Follower& follower,
                                                      const graph::AheadStep& step) const {
  const auto promise_of = [&](NodeIndex node) -> const engine::RowResult* {
    for (const Promise& each : live.promises)
      if (each.partition == follower.partition && each.node.node == node &&
          live.partitions[follower.partition.value]->is_current(each.node))
        return each.result;
    return nullptr;
  };
  for (const graph::ReadyNode& each : step.waits_for)
    if (!promise_of(each.node)) return std::nullopt;
  const auto& state = *live.partitions[follower.partition.value];
  engine::RowInputs row{.request = live.request,
                        .params = live.params,
                        .walk = state.walk(),
                        .run = live.placed->model().at(state.walk()).nodes[follower.node].run,
                        .iteration = step.path.depth ? step.path.at[step.path.depth - 1] : 0,
                        .is_final = step.is_final,
                        .ahead = true};
  for (const graph::AheadInput& input : step.inputs) {
    const Values& values = input.from == graph::kNoNode ? *input.values : promise_of(input.from)->outputs[input.output];
    if (input.from != graph::kNoNode && values.empty()) return std::nullopt;  // withheld
    row.ports.push_back(values);
    row.num_seen.push_back(input.chunk ? input.chunk->num_seen : 0);
  }
  if (!state.flags().empty()) row.flags = std::make_shared<const std::map<std::string, std::int64_t>>(state.flags());
  return row;
}

// After anything that may complete or void nodes of the partition: rows ahead that wait for none of its running nodes
// any more are certain, or not to be.
void Worker::settle_ahead(Live& live, PartitionRef partition) {
  auto& state = *live.partitions[partition.value];
  for (std::size_t i = 0; i < live.ahead.size();) {
    Row& row = *live.ahead[i];
    const bool waits = std::any_of(row.waits_for.begin(), row.waits_for.end(),
                                   [&](const graph::ReadyNode& node) { return state.is_current(node); });
    if (row.pending.partition != partition || waits) {
      ++i;
    } else if (state.confirm_ahead(row.pending.node.node)) {
      row.standing = Standing::certain;
      live.ahead.erase(live.ahead.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      give_up(live, row);
    }
  }
}

void Worker::give_up(Live& live, Row& row) {
  if (row.standing == Standing::unwanted) return;
  if (row.standing == Standing::ahead)
    live.partitions[row.pending.partition.value]->rollback_ahead(row.pending.node.node);
  row.standing = Standing::unwanted;
  ++live.num_unwanted;
  std::erase(live.ahead, &row);
}

}  // namespace mstar::worker
