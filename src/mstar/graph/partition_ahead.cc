// Steps that are prepared while the ones that feed them still run.
#include <algorithm>

#include "mstar/graph/partition_internal.h"

namespace mstar::graph {

void PartitionState::State::wait_for(NodeIndex node, AheadStep& step) const {
  if (std::none_of(step.waits_for.begin(), step.waits_for.end(), [&](const ReadyNode& n) { return n.node == node; }))
    step.waits_for.push_back({node, nodes[node].ticket});
}

bool PartitionState::State::add_running(NodeIndex node, const OutputOf& from, AheadStep& step) const {
  if (from.node == kNoNode || !is_local(from.node) || nodes[from.node].phase != Phase::running ||
      ahead[from.node].ready)
    return false;
  // A value that leaves a loop first is known only when that loop has ended.
  if (walk->nodes[from.node].inner_loop() != walk->nodes[node].inner_loop()) return false;
  step.inputs.push_back({from.node, from.output, nullptr, nullptr});
  wait_for(from.node, step);
  return true;
}

bool PartitionState::State::add_constant(NodeIndex node, std::size_t input, AheadStep& step) {
  if (!((nodes[node].present >> input) & 1U)) return false;
  step.inputs.push_back({kNoNode, 0, &now(node, input), nullptr});
  return true;
}

bool PartitionState::State::add_chunk(NodeIndex node, std::size_t input, AheadStep& step) {
  auto& buffer = streams[static_cast<std::size_t>(partition->find_stream(walk->slot(node, input).port))];
  const StreamChunk* chunk = buffer ? buffer->peek() : nullptr;
  if (!chunk) return false;
  step.is_final = step.is_final || chunk->is_final;
  step.inputs.push_back({kNoNode, 0, &chunk->items, chunk});
  return true;
}

bool PartitionState::State::covers_same_iteration(NodeIndex index, AheadStep& step) {
  const Node& spec = walk->nodes[index];
  bool from_running = false;
  for (std::size_t i = 0; i < spec.run->inputs.size(); ++i) {
    const Slot& in = walk->slot(index, i);
    const bool renewed = in.level >= spec.depth || ((in.back_levels >> spec.depth) & 1U);
    if (in.stream) {
      if (!add_chunk(index, i, step)) return false;
    } else if (!in.external && in.level == spec.depth && add_running(index, in.first_from, step)) {
      from_running = true;
    } else if (renewed || spec.depth == 0 || !add_constant(index, i, step)) {
      return false;  // an input that is there by itself does not count: only what the iteration can't change does
    }
  }
  return from_running;
}

bool PartitionState::State::covers_next_iteration(NodeIndex index, AheadStep& step) {
  const Node& spec = walk->nodes[index];
  if (spec.depth == 0) return false;
  const LoopIndex loop_index = spec.inner_loop();
  const LoopState& loop = loops[loop_index];
  if (loop.done || loop.iteration + 1 >= loop.limit) return false;
  std::uint16_t running = 0;
  for (const NodeIndex n : walk->loops[loop_index].direct_nodes) {
    if (!is_local(n) || nodes[n].phase != Phase::running || ahead[n].ready) continue;
    ++running;
    wait_for(n, step);
  }
  if (running != loop.remaining) return false;  // something of this iteration has not even begun
  for (std::size_t i = 0; i < spec.run->inputs.size(); ++i) {
    const Slot& in = walk->slot(index, i);
    if (in.stream) {
      if (!add_chunk(index, i, step)) return false;
    } else if ((in.back_levels >> spec.depth) & 1U) {
      if (!add_running(index, in.back_from[spec.depth], step)) return false;
    } else if (in.level >= spec.depth || !add_constant(index, i, step)) {
      return false;
    }
  }
  step.new_iteration_of = loop_index;
  ++step.path.at[spec.depth - 1U];
  return true;
}

std::optional<AheadStep> PartitionState::begin_ahead(NodeIndex index) {
  State& s = *state_;
  if (!s.walk || index >= s.nodes.size() || !s.is_local(index) || s.ahead[index].active) return std::nullopt;
  if (s.nodes[index].is_final) return std::nullopt;  // no chunk follows the final one
  AheadStep step;
  step.node = index;
  step.path = path(index);
  step.inputs.reserve(s.walk->nodes[index].run->inputs.size());
  const State::Phase phase = s.nodes[index].phase;
  if (phase == State::Phase::queued) return std::nullopt;
  const bool covered =
      phase == State::Phase::idle ? s.covers_same_iteration(index, step) : s.covers_next_iteration(index, step);
  if (!covered) return std::nullopt;
  step.ticket = ++s.last_ticket;
  s.ahead[index] = {step.ticket, true, false};
  return step;
}

bool PartitionState::confirm_ahead(NodeIndex index) {
  State& s = *state_;
  if (!s.walk || index >= s.ahead.size() || !s.ahead[index].active) return false;
  const bool ready = s.ahead[index].ready;
  s.ahead[index] = {};
  return ready;
}

void PartitionState::rollback_ahead(NodeIndex index) {
  State& s = *state_;
  if (!s.walk || index >= s.ahead.size() || !s.ahead[index].active) return;
  const bool ready = s.ahead[index].ready;
  s.ahead[index] = {};
  if (!ready) return;
  State::NodeState& node = s.nodes[index];
  node.phase = State::Phase::queued;
  node.ticket = ++s.last_ticket;
  s.queue.push_back({index, node.ticket});
  ++s.num_ready;
}

}  // namespace mstar::graph
