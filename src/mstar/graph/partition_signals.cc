// Values and stops from outside of a pass: where they fit, and what waits.
#include <algorithm>

#include "mstar/graph/partition_internal.h"

namespace mstar::graph {
namespace {
constexpr std::int64_t kMaxIndex = std::int64_t{1} << 60;  // of a stream: far from overflow
}  // namespace

PartitionState::State::Fit PartitionState::State::place(Delivery& delivery) {
  if (delivery.pass > pass) return Fit::later;
  if (delivery.pass < pass || !walk || delivery.edge >= walk->edges.size()) return Fit::never;
  const Edge& edge = walk->edges[delivery.edge];
  if (delivery.path.depth != edge.depth) return Fit::never;
  const Target* local = nullptr;
  bool innermost = true;
  for (const Target& target : edge.targets) {
    if (!is_local(target.node)) continue;
    if (!local) local = &target;
    innermost = innermost && walk->nodes[target.node].depth == edge.depth;
  }
  if (!local) return Fit::never;
  for (std::size_t d = 0; d < edge.depth; ++d) {
    const LoopState& loop = loops[walk->nodes[local->node].loops[d]];
    const std::int32_t at = delivery.path.at[d];
    if (loop.done || at < loop.iteration || at >= loop.limit) return Fit::never;
    if (at == loop.iteration) continue;
    if (!innermost || d + 1U != edge.depth || at != loop.iteration + 1) return Fit::later;
    const SlotState& state = slot(local->node, local->slot);
    if (state.next_edge == delivery.edge) return Fit::never;
    if (state.next_edge != kNoEdge) return Fit::later;
    put_next(delivery.edge, std::move(delivery.values));
    return Fit::next;
  }
  if (std::none_of(edge.targets.begin(), edge.targets.end(), [&](const Target& t) { return wants(edge, t); }))
    return Fit::never;
  put(delivery.edge, std::move(delivery.values));
  return Fit::now;
}

PartitionState::State::Fit PartitionState::State::fit_stop(const LoopStop& stop) const {
  if (stop.pass > pass) return Fit::later;
  if (stop.pass < pass || !walk || stop.loop >= walk->loops.size() || !fragment->loop_members[stop.loop])
    return Fit::never;
  const CompiledLoop& spec = walk->loops[stop.loop];
  if (stop.path.depth != spec.depth) return Fit::never;
  std::array<LoopIndex, kMaxLoopDepth> around = {};
  std::size_t level = spec.depth;
  for (LoopIndex l = stop.loop; l != kNoLoop; l = walk->loops[l].parent) around[--level] = l;
  for (std::size_t d = 0; d + 1U < spec.depth; ++d) {
    const LoopState& loop = loops[around[d]];
    if (loop.done || stop.path.at[d] < loop.iteration || stop.path.at[d] >= loop.limit) return Fit::never;
    if (stop.path.at[d] > loop.iteration) return Fit::later;
  }
  const LoopState& loop = loops[stop.loop];
  const std::int32_t limit = stop.path.at[spec.depth - 1U] + 1;
  if (loop.done || limit < 1 || limit > loop.limit || (loop.stopped && limit == loop.limit)) return Fit::never;
  return Fit::now;
}

void PartitionState::State::lower_limit(const LoopStop& stop) {
  LoopState& loop = loops[stop.loop];
  loop.limit = stop.path.at[stop.path.depth - 1U] + 1;
  loop.stopped = true;
}

void PartitionState::State::replay_early() {
  for (std::size_t i = 0; i < early_stops.size();) {
    const Fit fit = fit_stop(early_stops[i]);
    if (fit == Fit::now) lower_limit(early_stops[i]);
    if (fit == Fit::later)
      ++i;
    else
      early_stops.erase(early_stops.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t i = 0; i < early.size();) {
    if (place(early[i]) == Fit::later)
      ++i;
    else
      early.erase(early.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Accepted PartitionState::deliver(Delivery delivery) {
  State& s = *state_;
  for (const Delivery& each : s.early)
    if (each.pass == delivery.pass && each.edge == delivery.edge && each.path == delivery.path)
      return Accepted::refused;
  switch (s.place(delivery)) {
    case State::Fit::now:
      return Accepted::now;
    case State::Fit::next:
      return Accepted::early;
    case State::Fit::later:
      s.early.push_back(std::move(delivery));
      return Accepted::early;
    case State::Fit::never:
      break;
  }
  return Accepted::refused;
}

Accepted PartitionState::deliver_input(decl::PortRef port, std::int32_t pass, Values values) {
  State& s = *state_;
  if (!s.walk || pass != s.pass) return Accepted::refused;
  const ExternalInput* input = s.walk->find_input(port);
  if (!input || input->stream) return Accepted::refused;
  return deliver({pass, input->edge, {}, std::move(values)});
}

Accepted PartitionState::deliver_kept(KeptValue value) {
  State& s = *state_;
  const auto& known = s.partition->kept;
  if (std::find(known.begin(), known.end(), value.port) == known.end()) return Accepted::refused;
  bool waited = false;
  for (std::size_t i = 0; i < s.waiting_kept.size();) {
    const State::WaitingKept each = s.waiting_kept[i];
    if (each.pass != value.pass || s.walk->edges[each.edge].port != value.port) {
      ++i;
      continue;
    }
    s.waiting_kept.erase(s.waiting_kept.begin() + static_cast<std::ptrdiff_t>(i));
    s.put(each.edge, Values(value.values));
    waited = true;
  }
  State::Kept* stored = s.find_kept(value.port);
  if (stored && stored->pass >= value.pass) return waited ? Accepted::now : Accepted::refused;
  if (stored)
    *stored = {value.port, value.pass, std::move(value.values)};
  else
    s.kept.push_back({value.port, value.pass, std::move(value.values)});
  return waited ? Accepted::now : Accepted::early;
}

Accepted PartitionState::push_stream(StreamItems items) {
  State& s = *state_;
  const int stream = s.partition->find_stream(items.port);
  if (stream < 0 || !s.streams[static_cast<std::size_t>(stream)]) return Accepted::refused;
  if (items.first_index < 0 || items.first_index > kMaxIndex) return Accepted::refused;
  StreamBuffer& buffer = *s.streams[static_cast<std::size_t>(stream)];
  bool any = false;
  for (std::size_t i = 0; i < items.items.size(); ++i)
    any = buffer.push(items.first_index + static_cast<std::int64_t>(i), std::move(items.items[i])) || any;
  if (any && s.walk)
    if (const State::Reader reader = s.readers[static_cast<std::size_t>(stream)]; reader.node != kNoNode)
      s.check_ready(reader.node);
  return any ? Accepted::now : Accepted::refused;
}

Accepted PartitionState::finish_stream(const StreamEnd& end) {
  State& s = *state_;
  const int stream = s.partition->find_stream(end.port);
  if (stream < 0 || !s.streams[static_cast<std::size_t>(stream)]) return Accepted::refused;
  StreamBuffer& buffer = *s.streams[static_cast<std::size_t>(stream)];
  if (buffer.producer_done()) return Accepted::refused;
  buffer.finish(end.num_items);
  if (s.walk)
    if (const State::Reader reader = s.readers[static_cast<std::size_t>(stream)]; reader.node != kNoNode)
      s.check_ready(reader.node);
  return Accepted::now;
}

Accepted PartitionState::stop_loop(const LoopStop& stop, Effects& effects) {
  effects.clear();
  State& s = *state_;
  const State::Fit fit = s.fit_stop(stop);
  if (fit == State::Fit::never) return Accepted::refused;
  for (const LoopStop& each : s.early_stops)
    if (each.pass == stop.pass && each.loop == stop.loop && each.path == stop.path) return Accepted::refused;
  if (fit == State::Fit::later) s.early_stops.push_back(stop);
  if (fit == State::Fit::now) s.lower_limit(stop);
  // With a third worker, values that follow from this stop may go there from here and overtake the first sender's
  // message.
  if (s.walk && stop.pass == s.pass)
    if (std::vector<WorkerId> peers = s.placed->loop_peers(s.walk->ref, stop.loop, s.self); peers.size() > 1)
      effects.stops.push_back({stop, std::move(peers)});
  if (fit == State::Fit::later) return Accepted::early;
  const State::LoopState& loop = s.loops[stop.loop];
  if (loop.iteration >= loop.limit) s.end_loop(stop.loop, effects);
  return Accepted::now;
}

}  // namespace mstar::graph
