// The virtual conductor: plans, reports, the client, and what must hold at the end.
#include <algorithm>

#include "mstar/graph/sim/simulator_internal.h"

namespace mstar::graph::sim {

void Simulator::conduct(Message message) {
  if (out_.aborted) return;
  if (auto* kept = std::get_if<KeptReport>(&message)) {
    const Ids want = oracle_.last_travelled(kept->partition, kept->value.port);
    if (ids_of(kept->value.values) != want)
      fault("kept '" + decl_.at(kept->value.port).name + "' is not the last value");
    at(kept->partition).kept[kept->value.port] = want;
    at(kept->partition).kept_reported.insert(kept->value.port);
    return;
  }
  auto& report = std::get<Report>(message);
  PartitionRun& partition = at(report.partition);
  const bool running = partition.progress.running();
  check_loop_ends(report, partition);
  if (!partition.progress.on_fragment(report.worker, report.done)) {
    if (!running) fault("a fragment reported twice");
    return;
  }
  if (!partition.cancelled) check_client(report.partition);
  if (partition.progress.num_tokens() > 0 && params_.sampling.max_tokens > 0 && budgeted(report.partition) &&
      partition.progress.num_tokens() > params_.sampling.max_tokens)
    fault("more tokens than the budget");
  next_walk(report.partition);
}

// Only plans that derive their caps from the budget keep it.
bool Simulator::budgeted(decl::PartitionRef partition) const {
  if (decl_.name() == "qwen3_tts") return true;
  for (const decl::WalkRef ref_of : model_.at(partition).walks)
    for (const CompiledLoop& loop : model_.at(ref_of).loops)
      if (const auto* rule = std::get_if<decl::TokenStop>(&loop.spec->stop); rule && !rule->prefill_walks.empty())
        return true;
  return false;
}

void Simulator::check_loop_ends(const Report& report, PartitionRun& partition) {
  if (report.done.cancelled || partition.cancelled) return;
  const CompiledWalk& walk = model_.at(report.done.walk);
  for (const FragmentLoopEnd& end : report.done.loop_ends) {
    if (walk.loops[end.loop].depth != 1) continue;
    const auto cap = caps_[report.partition].find(walk.loops[end.loop].spec->name);
    std::int32_t want = cap == caps_[report.partition].end() ? walk.loops[end.loop].spec->at_most : cap->second;
    const auto stop = stop_at_.find({report.partition.value, end.loop});
    if (stop != stop_at_.end()) want = std::min(want, stop->second + 1);
    if (end.iterations != want)
      fault("loop '" + walk.loops[end.loop].spec->name + "' ran " + std::to_string(end.iterations) +
            " iterations, must run " + std::to_string(want));
  }
}

void Simulator::check_client(decl::PartitionRef partition) {
  for (std::size_t p = 0; p < decl_.ports().size(); ++p) {
    const decl::PortRef port(static_cast<std::uint16_t>(p));
    bool to_client = false;
    for (const decl::Travel& travel : decl_.at(port).travel)
      to_client = to_client || std::holds_alternative<decl::ToClient>(travel);
    if (!to_client) continue;
    Ids got = at(partition).client[port];
    std::sort(got.begin(), got.end());
    const Ids want = oracle_.all_travelled(partition, port);
    if (got != want) fault("client got " + print(got) + " on '" + decl_.at(port).name + "', must get " + print(want));
  }
  at(partition).client.clear();
}

void Simulator::next_walk(decl::PartitionRef ref_of) {
  PartitionRun& partition = at(ref_of);
  PartitionProgress& progress = partition.progress;
  if (partition.done) return fault("a partition went on after its end");
  if (partition.cancelled || progress.final_consumed() || progress.end_partition()) return end_partition(ref_of);
  std::map<decl::PortRef, std::vector<HostValue>> kept;
  std::map<decl::PortRef, decl::StreamCounts> streams;
  for (const StreamInput& stream : model_.at(ref_of).streams)
    streams[stream.port] = {static_cast<std::int64_t>(streams_[stream.port].made.size()),
                            progress.consumed(stream.port), stream_total_.count(stream.port) > 0};
  const decl::PlanView view{params_, progress.finished(),  progress.num_walks(), kept,
                            streams, progress.loop_ends(), progress.num_tokens()};
  Result<decl::Decision> decision = partition.plan->next(view);
  if (!decision) return fault("plan: " + decision.error().message);
  const auto* next = std::get_if<decl::NextWalk>(&*decision);
  if (!next) return end_partition(ref_of);
  auto starts = progress.begin(*next);
  if (!starts) return fault(starts.error().message);
  oracle_.begin_pass(ref_of, next->walk);
  plan_given_[ref_of].clear();
  for (const auto& [port, values] : next->inputs) plan_given_[ref_of][port] = Ids(values.size(), 0);
  caps_[ref_of] = next->caps;
  for (auto it = stop_at_.begin(); it != stop_at_.end();)
    it = it->first[0] == ref_of.value ? stop_at_.erase(it) : std::next(it);
  for (auto& [worker, start] : *starts) send(num_workers_, worker.value, PartitionSignal{ref_of, std::move(start)});
}

void Simulator::end_partition(decl::PartitionRef ref_of) {
  PartitionRun& partition = at(ref_of);
  partition.done = true;
  for (const auto& [port, to] : partition.progress.out_streams()) {
    stream_total_[port] = partition.progress.produced(port);
    const WorkerId worker = placed_.stream_worker(to, port);
    if (worker.valid())
      send(num_workers_, worker.value, PartitionSignal{to, StreamEnd{port, partition.progress.produced(port)}});
  }
}

// -1: the client has ended the port.
void Simulator::client_item(decl::PortRef port) {
  int& left = client_left_[port];
  const std::int64_t index = static_cast<std::int64_t>(streams_[port].made.size());
  Signal signal = StreamEnd{port, index};
  if (left-- > 0) {
    Values values{make()};
    streams_[port].made.push_back(last_id_);
    signal = StreamItems{port, index, std::move(values)};
  } else {
    stream_total_[port] = index;
  }
  for (std::size_t p = 0; p < partitions_.size(); ++p)
    if (const WorkerId worker = placed_.stream_worker(ref(p), port); worker.valid())
      send(num_workers_, worker.value, PartitionSignal{ref(p), signal});
}

void Simulator::cancel(decl::PartitionRef partition) {
  if (at(partition).cancelled || at(partition).done || !at(partition).progress.running()) return;
  at(partition).cancelled = true;
  for (const WorkerId worker : placed_.workers(partition)) send(num_workers_, worker.value, CancelPass{partition});
}

void Simulator::abort() {
  out_.aborted = true;
  for (auto& [port, left] : client_left_) left = -1;
  for (std::size_t w = 0; w < num_workers_; ++w) send(num_workers_, w, PartitionSignal{{}, Removal{}});
}

void Simulator::check_end() {
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    if (!partitions_[p].done)
      fault("partition '" + model_.at(ref(p)).name + "' of " + decl_.name() + " stands still in walk " +
            std::to_string(partitions_[p].progress.pass()));
    std::size_t left = 0;
    for (const Worker& worker : workers_) {
      if (!worker.known || !worker.states.count(ref(p))) continue;
      if (worker.states.at(ref(p)).walk().valid()) fault("a fragment still runs");
      left += worker.states.at(ref(p)).num_values();
    }
    // Kept and request values, and streams that the partition did not want to the end.
    std::size_t may_stay = model_.at(ref(p)).request_inputs.size() * num_workers_;
    for (const auto& [port, ids] : partitions_[p].kept) may_stay += ids.size() * num_workers_;
    for (const StreamInput& stream : model_.at(ref(p)).streams) may_stay += streams_[stream.port].made.size();
    if (left > may_stay) fault("values stay in partition '" + model_.at(ref(p)).name + "'");
  }
  for (const auto& [port, stream] : streams_)
    for (const auto& [partition, finals] : stream.finals)
      if (finals > 1) fault("more than one final chunk");
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    int finals = 0;
    for (const StreamInput& stream : model_.at(ref(p)).streams) finals += streams_[stream.port].finals[ref(p)];
    if (partitions_[p].progress.final_consumed() && !partitions_[p].cancelled && finals == 0)
      fault("a stream ended without a final chunk");
  }
  check_ledgers();
  check_tokens();
}

// Every row that began was committed or rolled back, and the request gives everything back.
void Simulator::check_ledgers() {
  std::int64_t committed = 0;
  for (Worker& worker : workers_) {
    committed += worker.ledger.num_committed();
    for (const Ahead& each : worker.ahead) worker.ledger.roll_back(each.partition, each.step.ticket);
    worker.ahead.clear();
    if (worker.ledger.num_in_flight() > 0) fault("a row is in flight after the end");
    worker.ledger.remove();
    if (!worker.ledger.fault().empty()) fault(worker.ledger.fault());
  }
  if (committed != out_.steps) fault("not every step was committed once");
}

// Tokens that the client gets are the tokens of committed rows, where nothing was cut off and no loop keeps only the
// last.
void Simulator::check_tokens() {
  if (std::any_of(partitions_.begin(), partitions_.end(), [](const PartitionRun& p) { return p.cancelled; })) return;
  std::set<decl::PortRef> last_only;
  for (const CompiledWalk& walk : model_.walks())
    for (const CompiledLoop& loop : walk.loops) last_only.insert(loop.spec->outputs.begin(), loop.spec->outputs.end());
  for (const auto& [port, made] : tokens_made_) {
    bool to_client = false;
    for (const decl::Travel& travel : decl_.at(port).travel)
      to_client = to_client || std::holds_alternative<decl::ToClient>(travel);
    if (to_client && !last_only.count(port) && tokens_delivered_[port] != made)
      fault("the client got " + std::to_string(tokens_delivered_[port]) + " tokens of " + std::to_string(made));
  }
}

}  // namespace mstar::graph::sim
