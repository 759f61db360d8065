// How values move inside of a pass: into slots, round loops, out of the fragment.
#include <algorithm>

#include "mstar/graph/partition_internal.h"

namespace mstar::graph {
namespace {

std::uint64_t bit(std::size_t input) { return std::uint64_t{1} << input; }

// Whether the innermost loop at `depth` gives the input anew in each iteration. Depth 0: used once.
bool is_renewed(const Slot& slot, int depth) {
  return slot.stream || slot.level >= depth || (slot.back_levels & (1U << depth)) != 0;
}

std::int64_t count_tokens(const Values& values) {
  std::int64_t count = 0;
  for (const Value& value : values) {
    if (value.is_signal()) continue;
    if (value.on_host()) {
      count += value.host.dims().empty() ? 1 : value.host.dims().front();
    } else {
      const Dims dims = value.device->dims();
      count += dims.empty() ? 1 : dims.front();
    }
  }
  return count;
}

}  // namespace

LoopPath PartitionState::State::path_of(NodeIndex node, int depth) const {
  LoopPath path;
  path.depth = static_cast<std::uint8_t>(depth);
  for (int d = 0; d < depth; ++d) {
    const auto i = static_cast<std::size_t>(d);
    path.at[i] = loops[walk->nodes[node].loops[i]].iteration;
  }
  return path;
}

// Whether the input still waits for this source in the iteration that runs.
bool PartitionState::State::wants(const Edge& edge, const Target& target) const {
  if (!is_local(target.node)) return false;
  const NodeState& node = nodes[target.node];
  if (node.phase != Phase::idle || (node.present & bit(target.slot))) return false;
  const Node& spec = walk->nodes[target.node];
  const std::uint8_t backs = walk->slot(target.node, target.slot).back_levels;
  for (std::size_t d = edge.depth; d < spec.depth; ++d)
    if ((backs & (2U << d)) && loops[spec.loops[d]].iteration > 0) return false;
  return true;
}

void PartitionState::State::put(EdgeIndex edge_index, Values&& values) {
  const Edge& edge = walk->edges[edge_index];
  const Target* last = nullptr;
  for (const Target& target : edge.targets)
    if (wants(edge, target)) last = &target;
  for (const Target& target : edge.targets) {
    if (!wants(edge, target)) continue;
    NodeState& node = nodes[target.node];
    Values& to = now(target.node, target.slot);
    to = &target == last ? std::move(values) : Values(values);
    const Slot& spec = walk->slot(target.node, target.slot);
    if (spec.entry >= 0) {
      Entry& entry = entries[static_cast<std::size_t>(spec.entry)];
      entry.values[edge.depth] = to;
      entry.levels = static_cast<std::uint8_t>((entry.levels & ((1U << edge.depth) - 1U)) | (1U << edge.depth));
    }
    node.present |= bit(target.slot);
    check_ready(target.node);
  }
}

void PartitionState::State::put_next(EdgeIndex edge_index, Values&& values) {
  const Edge& edge = walk->edges[edge_index];
  const Target* last = nullptr;
  for (const Target& target : edge.targets)
    if (is_local(target.node)) last = &target;
  for (const Target& target : edge.targets) {
    if (!is_local(target.node)) continue;
    SlotState& to = slot(target.node, target.slot);
    to.next = &target == last ? std::move(values) : Values(values);
    to.next_edge = edge_index;
  }
}

bool PartitionState::State::take_chunks(NodeIndex index) {
  const Node& spec = walk->nodes[index];
  std::uint64_t rest = spec.streams;
  for (std::uint64_t left = rest; left; left &= left - 1) {
    const auto input = static_cast<std::size_t>(__builtin_ctzll(left));
    auto& buffer = streams[static_cast<std::size_t>(partition->find_stream(spec.run->inputs[input]))];
    if (!buffer || !buffer->peek()) return false;
  }
  for (; rest; rest &= rest - 1) {
    const auto input = static_cast<std::size_t>(__builtin_ctzll(rest));
    auto& buffer = streams[static_cast<std::size_t>(partition->find_stream(spec.run->inputs[input]))];
    std::optional<StreamChunk> chunk = buffer->take();
    now(index, input) = std::move(chunk->items);
    slot(index, input).num_seen = chunk->num_seen;
    nodes[index].present |= bit(input);
    nodes[index].is_final = nodes[index].is_final || chunk->is_final;
  }
  return true;
}

void PartitionState::State::check_ready(NodeIndex index) {
  NodeState& node = nodes[index];
  const Node& spec = walk->nodes[index];
  if (node.phase != Phase::idle || (spec.need & ~spec.streams & ~node.present)) return;
  if (spec.streams && !take_chunks(index)) return;
  AheadState& step = ahead[index];
  if (step.active) {  // it runs already: only the confirmation is missing
    step.ready = true;
    node.phase = Phase::running;
    node.ticket = step.ticket;
    return;
  }
  node.phase = Phase::queued;
  node.ticket = ++last_ticket;
  queue.push_back({index, node.ticket});
  ++num_ready;
}

void PartitionState::State::send(EdgeIndex edge_index, const LoopPath& path, Values&& values, Effects& effects) {
  if (edge_index == kNoEdge) return;
  const Edge& edge = walk->edges[edge_index];
  for (const WorkerId worker : placed->edge_peers(walk->ref, edge_index))
    effects.peers.push_back({worker, {pass, edge_index, path, values}});
  const auto local =
      std::find_if(edge.targets.begin(), edge.targets.end(), [&](const Target& t) { return is_local(t.node); });
  if (local == edge.targets.end()) return;
  if (edge.back == kNoLoop) return put(edge_index, std::move(values));
  const bool innermost = std::all_of(edge.targets.begin(), edge.targets.end(), [&](const Target& t) {
    return !is_local(t.node) || walk->nodes[t.node].depth == edge.depth;
  });
  if (innermost) return put_next(edge_index, std::move(values));
  early.push_back({pass, edge_index, path, std::move(values)});
}

void PartitionState::State::travel(NodeIndex node, const Output& out, Values&& values, Effects& effects) {
  if (!out.streams_to.empty()) {
    const auto at =
        std::find_if(produced.begin(), produced.end(), [&](const Produced& p) { return p.port == out.port; });
    Produced& counter = at != produced.end() ? *at : produced.emplace_back(Produced{out.port, 0, 0});
    for (const decl::PartitionRef to : out.streams_to)
      effects.items.push_back(
          {to, placed->stream_worker(to, out.port), {out.port, counter.base + counter.count, values}});
    counter.count += static_cast<std::int64_t>(values.size());
  }
  if (out.to_client) effects.client.push_back({out.port, out.keep ? values : std::move(values)});
  if (!out.keep) return;
  std::size_t i = 0;
  while (i < written.size() && written[i].port != out.port) ++i;
  if (i == written.size()) {
    written.push_back({out.port, pass, {}});
    written_by.push_back(node);
  }
  if (node < written_by[i]) return;
  written_by[i] = node;
  written[i].values = std::move(values);
}

// `depth`: loops round the value where it is now.
void PartitionState::State::route(NodeIndex node, std::uint8_t output, int depth, Values&& values, Effects& effects) {
  const Output& out = walk->outputs[static_cast<std::size_t>(walk->nodes[node].first_output) + output];
  const auto d = static_cast<std::size_t>(depth);
  if (out.forward[d] != kNoEdge) send(out.forward[d], path_of(node, depth), Values(values), effects);
  if (depth > 0) {
    const LoopState& loop = loops[walk->nodes[node].loops[d - 1]];
    if (out.back[d] != kNoEdge && loop.iteration + 1 < loop.limit) {
      LoopPath path = path_of(node, depth);
      ++path.at[d - 1];
      send(out.back[d], path, Values(values), effects);
    }
    if (out.exports[d] != Export::none) {
      Cached& held = cached[static_cast<std::size_t>(out.cache[d])];
      if (out.exports[d] == Export::last || !held.set)
        held.values = std::move(values);
      else
        for (Value& each : values) held.values.push_back(std::move(each));
      held.set = true;
      return;
    }
  }
  if (depth == out.travel_depth) travel(node, out, std::move(values), effects);
}

void PartitionState::State::stop_after_this(NodeIndex node, LoopIndex index, Effects& effects) {
  LoopState& loop = loops[index];
  if (loop.stopped && loop.limit <= loop.iteration + 1) return;
  loop.stopped = true;
  loop.limit = std::min(loop.limit, loop.iteration + 1);
  std::vector<WorkerId> peers = placed->loop_peers(walk->ref, index, self);
  if (!peers.empty())
    effects.stops.push_back({{pass, index, path_of(node, walk->loops[index].depth)}, std::move(peers)});
}

void PartitionState::State::leave(NodeIndex index) {
  const Node& spec = walk->nodes[index];
  for (std::size_t i = 0; i < spec.run->inputs.size(); ++i) {
    if (!is_renewed(walk->slot(index, i), spec.depth)) continue;
    now(index, i).clear();
    nodes[index].present &= ~bit(i);
  }
}

void PartitionState::State::finish_member(LoopIndex index, Effects& effects) {
  if (index == kNoLoop) {
    if (--top_remaining == 0) finish_fragment(effects);
    return;
  }
  LoopState& loop = loops[index];
  if (--loop.remaining) return;
  if (loop.iteration + 1 < loop.limit) return advance(index);
  ++loop.iteration;
  end_loop(index, effects);
}

void PartitionState::State::next_iteration(NodeIndex index, int depth) {
  const Node& spec = walk->nodes[index];
  NodeState& node = nodes[index];
  node.phase = Phase::idle;
  node.is_final = false;
  for (std::size_t i = 0; i < spec.run->inputs.size(); ++i) {
    const Slot& in = walk->slot(index, i);
    SlotState& state = slot(index, i);
    if (is_renewed(in, depth)) {
      now(index, i).clear();
      node.present &= ~bit(i);
      if (spec.depth != depth || state.next_edge == kNoEdge) continue;
      std::swap(now(index, i), state.next);
      state.next_edge = kNoEdge;
      node.present |= bit(i);
    } else if (in.back_levels >> (depth + 1) && in.entry >= 0) {
      // A loop inside starts again from what it got before this loop's iterations.
      const Entry& entry = entries[static_cast<std::size_t>(in.entry)];
      for (int level = depth - 1; level >= 0; --level) {
        if (!(entry.levels & (1U << level))) continue;
        now(index, i) = entry.values[static_cast<std::size_t>(level)];
        node.present |= bit(i);
        break;
      }
    }
  }
}

void PartitionState::State::advance(LoopIndex index) {
  const CompiledLoop& spec = walk->loops[index];
  LoopState& loop = loops[index];
  ++loop.iteration;
  loop.remaining = fragment->loop_members[index];
  for (const LoopIndex inner : spec.all_loops) {
    LoopState& state = loops[inner];
    state = {0, state.cap, state.cap, fragment->loop_members[inner], false, false};
  }
  for (const NodeIndex node : spec.all_nodes)
    if (is_local(node)) next_iteration(node, spec.depth);
  if (!early.empty() || !early_stops.empty()) replay_early();
  for (const NodeIndex node : spec.all_nodes)
    if (is_local(node)) check_ready(node);
}

void PartitionState::State::end_loop(LoopIndex index, Effects& effects) {
  const CompiledLoop& spec = walk->loops[index];
  LoopState& loop = loops[index];
  loop.done = true;
  for (const LoopIndex inner : spec.all_loops) loops[inner].done = true;
  for (const NodeIndex n : spec.all_nodes) {
    if (!is_local(n)) continue;
    NodeState& node = nodes[n];
    if (node.phase == Phase::queued) --num_ready;
    node.phase = Phase::done;
    ahead[n] = {};
    for (std::size_t i = 0; i < walk->nodes[n].run->inputs.size(); ++i) {
      SlotState& state = slot(n, i);
      state.next.clear();
      state.next_edge = kNoEdge;
      const Slot& in = walk->slot(n, i);
      if (spec.depth > 1 && !is_renewed(in, spec.depth)) continue;
      now(n, i).clear();
      node.present &= ~bit(i);
      if (spec.depth == 1 && in.entry >= 0) entries[static_cast<std::size_t>(in.entry)] = {};
    }
  }
  const decl::LoopEnd end = loop.stopped ? decl::LoopEnd::stop : decl::LoopEnd::cap;
  const auto at =
      std::find_if(done.loop_ends.begin(), done.loop_ends.end(), [&](const auto& e) { return e.loop == index; });
  FragmentLoopEnd& entry = at != done.loop_ends.end() ? *at : done.loop_ends.emplace_back();
  entry = {index, end, loop.iteration};
  for (const OutputOf& out : spec.exports) {
    if (!is_local(out.node)) continue;
    const Output& output = walk->outputs[static_cast<std::size_t>(walk->nodes[out.node].first_output) + out.output];
    Cached& held = cached[static_cast<std::size_t>(output.cache[spec.depth])];
    if (!held.set) continue;
    held.set = false;
    Values values = std::move(held.values);
    held.values.clear();
    route(out.node, out.output, spec.depth - 1, std::move(values), effects);
  }
  finish_member(spec.parent, effects);
}

void PartitionState::State::finish_fragment(Effects& effects) {
  for (Kept& each : written) {
    std::vector<WorkerId> others = placed->readers(partition_ref, each.port);
    const auto own = std::find(others.begin(), others.end(), self);
    if (own != others.end()) {
      others.erase(own);
      if (Kept* stored = find_kept(each.port))
        *stored = each;
      else
        kept.push_back(each);
    }
    done.kept.push_back(each.port);
    effects.kept.push_back({{each.port, pass, std::move(each.values)}, std::move(others)});
  }
  effects.done = report();
  end_pass();
}

bool PartitionState::complete(ReadyNode ready, std::span<Values> outputs, const StopSignals& stops, Effects& effects) {
  effects.clear();
  State& s = *state_;
  if (!is_current(ready)) return false;
  const Node& spec = s.walk->nodes[ready.node];
  State::NodeState& node = s.nodes[ready.node];
  for (const LoopIndex loop : stops.loops)
    if (std::count(spec.loops.begin(), spec.loops.begin() + spec.depth, loop))
      s.stop_after_this(ready.node, loop, effects);
  if (node.is_final) {  // no further chunk will come for another iteration
    s.final_consumed = true;
    for (int d = spec.depth; d-- > 0;) s.stop_after_this(ready.node, spec.loops[static_cast<std::size_t>(d)], effects);
  }
  s.done.end_partition = s.done.end_partition || stops.end_partition;
  s.done.budget_spent = s.done.budget_spent || stops.budget_spent;
  node.phase = State::Phase::done;
  s.leave(ready.node);
  const std::size_t num_outputs = std::min(outputs.size(), spec.run->outputs.size());
  for (std::size_t o = 0; o < num_outputs; ++o) {
    if (outputs[o].empty()) continue;
    if (s.walk->outputs[spec.first_output + o].counts_token) effects.num_tokens += count_tokens(outputs[o]);
    s.route(ready.node, static_cast<std::uint8_t>(o), spec.depth, std::move(outputs[o]), effects);
    outputs[o].clear();
  }
  s.done.num_tokens += effects.num_tokens;
  s.finish_member(spec.inner_loop(), effects);
  return true;
}

}  // namespace mstar::graph
