// Starting a pass and taking signals from outside of it.
#include "mstar/graph/partition_state.h"

#include <algorithm>

#include "mstar/base/prefetch.h"
#include "mstar/graph/partition_internal.h"

namespace mstar::graph {
namespace {

bool may_be_absent(const decl::PortSpec& port) {
  for (const decl::Travel& travel : port.travel)
    if (const auto* request = std::get_if<decl::FromRequest>(&travel); request && request->optional) return true;
  return false;
}

}  // namespace

void Effects::clear() {
  stops.clear();
  peers.clear();
  kept.clear();
  items.clear();
  client.clear();
  num_tokens = 0;
  done.reset();
}

PartitionState::State::State(std::shared_ptr<const PlacedModel> placed_model, WorkerId own, decl::PartitionRef ref)
    : placed(std::move(placed_model)),
      model(&placed->model()),
      partition(&model->at(ref)),
      self(own),
      partition_ref(ref) {
  streams.resize(partition->streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (placed->stream_worker(ref, partition->streams[i].port) == self)
      streams[i].emplace(partition->streams[i].policy);
}

PartitionState::State::Kept* PartitionState::State::find_kept(decl::PortRef port) {
  for (Kept& each : kept)
    if (each.port == port) return &each;
  return nullptr;
}

Status PartitionState::State::check_start(const StartPass& start) const {
  if (walk) return invalid_request("a pass runs already");
  if (start.pass <= pass) return invalid_request("passes must grow");
  if (start.walk.value >= model->walks().size() || model->at(start.walk).partition != partition_ref)
    return invalid_request("not a walk of this partition");
  if (!placed->fragment(start.walk, self)) return invalid_request("this worker runs nothing of the walk");
  const CompiledWalk& next = model->at(start.walk);
  for (const auto& [loop, cap] : start.caps)
    if (loop >= next.loops.size() || cap < 1) return invalid_request("bad cap of a loop");
  for (const ExternalInput& input : next.inputs) {
    const auto is_port = [&](const auto& each) { return each.first == input.port; };
    const auto owners = placed->edge_peers(start.walk, input.edge);
    if (input.stream || !std::count(owners.begin(), owners.end(), self)) continue;
    if (std::any_of(start.inputs.begin(), start.inputs.end(), is_port)) continue;
    const auto at = std::find_if(start.kept.begin(), start.kept.end(), is_port);
    const std::string& name = model->declaration().at(input.port).name;
    if (at == start.kept.end() || at->second >= start.pass || at->second < 0)
      return invalid_request("nothing gives '" + name + "'");
    if (at->second > 0 || may_be_absent(model->declaration().at(input.port))) continue;
    const bool given = std::any_of(kept.begin(), kept.end(), [&](const Kept& k) { return k.port == input.port; });
    if (!given) return invalid_request("the request has no '" + name + "'");
  }
  return ok_status();
}

void PartitionState::State::arm(const StartPass& start) {
  walk = &model->at(start.walk);
  fragment = placed->fragment(start.walk, self);
  pass = start.pass;
  nodes.assign(walk->nodes.size(), {});
  ahead.assign(walk->nodes.size(), {});
  slots.assign(walk->slots.size(), {});
  current.assign(walk->slots.size(), {});
  entries.assign(static_cast<std::size_t>(walk->num_entries), {});
  cached.assign(static_cast<std::size_t>(walk->num_cached), {});
  loops.assign(walk->loops.size(), {});
  for (std::size_t l = 0; l < loops.size(); ++l) {
    loops[l].cap = loops[l].limit = walk->loops[l].spec->at_most;
    loops[l].remaining = fragment->loop_members[l];
  }
  for (const auto& [loop, cap] : start.caps) loops[loop].cap = loops[loop].limit = cap;
  top_remaining = fragment->top_members;
  final_consumed = false;
  done = {};
  done.walk = start.walk;
  done.pass = pass;
  written.clear();
  written_by.clear();
  waiting_kept.clear();
  queue.clear();
  queue_head = num_ready = 0;
  produced.clear();
  for (const auto& [port, base] : start.stream_base) produced.push_back({port, base, 0});
  readers.assign(streams.size(), {});
  for (const NodeIndex n : fragment->nodes) {
    const Node& node = walk->nodes[n];
    for (std::uint64_t left = node.streams; left; left &= left - 1) {
      const auto input = static_cast<std::size_t>(__builtin_ctzll(left));
      readers[static_cast<std::size_t>(partition->find_stream(node.run->inputs[input]))] = {
          n, static_cast<std::uint8_t>(input)};
    }
  }
}

void PartitionState::State::give_inputs(StartPass& start) {
  for (auto& [port, values] : start.inputs)
    if (const ExternalInput* input = walk->find_input(port); input && !input->stream)
      put(input->edge, std::move(values));
  for (const auto& [port, version] : start.kept) {
    const ExternalInput* input = walk->find_input(port);
    if (!input || input->stream) continue;
    const Kept* stored = find_kept(port);
    if (stored && stored->pass == version)
      put(input->edge, Values(stored->values));
    else if (version == 0)
      put(input->edge, Values(1));  // absent and optional: a signal
    else
      waiting_kept.push_back({version, input->edge});
  }
  for (const decl::PortRef port : start.forget)
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.port == port; }), kept.end());
}

FragmentDone PartitionState::State::report() {
  for (const Produced& each : produced)
    if (each.count) done.produced.emplace_back(each.port, each.count);
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (streams[i]) done.consumed.emplace_back(partition->streams[i].port, streams[i]->num_consumed());
  done.final_consumed = final_consumed;
  return std::move(done);
}

void PartitionState::State::end_pass() {
  walk = nullptr;
  fragment = nullptr;
  flags.clear();
  nodes.clear();
  ahead.clear();
  slots.clear();
  current.clear();
  entries.clear();
  cached.clear();
  loops.clear();
  waiting_kept.clear();
  written.clear();
  written_by.clear();
  queue.clear();
  queue_head = num_ready = 0;
  const auto old = [&](const auto& each) { return each.pass <= pass; };
  early.erase(std::remove_if(early.begin(), early.end(), old), early.end());
  early_stops.erase(std::remove_if(early_stops.begin(), early_stops.end(), old), early_stops.end());
}

bool PartitionState::State::is_running(ReadyNode ready) const {
  return walk && ready.node < nodes.size() && nodes[ready.node].phase == Phase::running &&
         nodes[ready.node].ticket == ready.ticket && !ahead[ready.node].ready;
}

PartitionState::PartitionState(std::shared_ptr<const PlacedModel> placed, WorkerId self, decl::PartitionRef partition)
    : state_(std::make_unique<State>(std::move(placed), self, partition)) {}
PartitionState::PartitionState(PartitionState&&) noexcept = default;
PartitionState& PartitionState::operator=(PartitionState&&) noexcept = default;
PartitionState::~PartitionState() = default;

void PartitionState::give_request_input(decl::PortRef port, Values values) {
  state_->kept.push_back({port, 0, std::move(values)});
}

Status PartitionState::start(StartPass start) {
  State& s = *state_;
  MSTAR_TRY(s.check_start(start));
  s.arm(start);
  s.flags = std::move(start.flags);
  s.give_inputs(start);
  s.replay_early();
  for (const NodeIndex node : s.fragment->nodes) s.check_ready(node);
  return ok_status();
}

Result<Accepted> PartitionState::apply(Signal signal, Effects& effects) {
  effects.clear();
  if (auto* start_pass = std::get_if<StartPass>(&signal)) {
    MSTAR_TRY(start(std::move(*start_pass)));
    return Accepted::now;
  }
  if (auto* value = std::get_if<Delivery>(&signal)) return deliver(std::move(*value));
  if (auto* value = std::get_if<KeptValue>(&signal)) return deliver_kept(std::move(*value));
  if (auto* value = std::get_if<StreamItems>(&signal)) return push_stream(std::move(*value));
  if (auto* value = std::get_if<StreamEnd>(&signal)) return finish_stream(*value);
  if (auto* value = std::get_if<LoopStop>(&signal)) return stop_loop(*value, effects);
  return Accepted::refused;
}

std::size_t PartitionState::num_ready() const { return state_->num_ready; }

std::optional<ReadyNode> PartitionState::take_ready() {
  State& s = *state_;
  while (s.queue_head < s.queue.size()) {
    const ReadyNode ready = s.queue[s.queue_head++];
    if (s.queue_head == s.queue.size()) s.queue.clear(), s.queue_head = 0;
    State::NodeState& node = s.nodes[ready.node];
    if (node.phase != State::Phase::queued || node.ticket != ready.ticket) continue;
    node.phase = State::Phase::running;
    --s.num_ready;
    return ready;
  }
  return std::nullopt;
}

std::span<const Values> PartitionState::inputs(NodeIndex node) const {
  const Node& spec = state_->walk->nodes[node];
  return {state_->current.data() + spec.first_slot, spec.run->inputs.size()};
}

int PartitionState::num_seen(NodeIndex node, std::size_t input) const { return state_->slot(node, input).num_seen; }
bool PartitionState::is_final(NodeIndex node) const { return state_->nodes[node].is_final; }
LoopPath PartitionState::path(NodeIndex node) const { return state_->path_of(node, state_->walk->nodes[node].depth); }
decl::WalkRef PartitionState::walk() const { return state_->walk ? state_->walk->ref : decl::WalkRef(); }
std::int32_t PartitionState::pass() const { return state_->pass; }
const std::map<std::string, std::int64_t>& PartitionState::flags() const { return state_->flags; }
bool PartitionState::is_current(ReadyNode node) const { return state_->is_running(node); }

std::optional<FragmentDone> PartitionState::cancel(bool drop_streams) {
  State& s = *state_;
  std::optional<FragmentDone> done;
  if (drop_streams)
    for (auto& buffer : s.streams)
      if (buffer) buffer->discard_to(buffer->num_received());
  if (s.walk) {
    s.done.cancelled = true;
    done = s.report();
    s.end_pass();
  }
  return done;
}

void PartitionState::prefetch() const { mstar::prefetch(state_.get()); }

void PartitionState::prefetch_parts() const {
  const State& s = *state_;
  mstar::prefetch(s.nodes.data());
  mstar::prefetch(s.ahead.data());
  mstar::prefetch(s.slots.data());
  mstar::prefetch(s.current.data());
  mstar::prefetch(s.loops.data());
  mstar::prefetch(s.written.data());
  mstar::prefetch(s.queue.data());
}

std::size_t PartitionState::num_values() const {
  const State& s = *state_;
  std::size_t count = 0;
  for (const auto& slot : s.slots) count += slot.next.size();
  for (const Values& values : s.current) count += values.size();
  for (const auto& entry : s.entries)
    for (const Values& values : entry.values) count += values.size();
  for (const auto& held : s.cached) count += held.values.size();
  for (const auto& each : s.kept) count += each.values.size();
  for (const auto& each : s.written) count += each.values.size();
  for (const auto& each : s.early) count += each.values.size();
  for (const auto& buffer : s.streams)
    if (buffer) count += buffer->num_values();
  return count;
}

}  // namespace mstar::graph
