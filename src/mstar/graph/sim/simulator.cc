#include "mstar/graph/sim/simulator.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>

#include "mstar/graph/sim/oracle.h"

namespace mstar::graph::sim {
namespace {

struct NewRequest {
  std::vector<std::pair<decl::PortRef, Values>> inputs;
};
struct CancelPass {
  decl::PartitionRef partition;
};
struct Report {
  WorkerId worker;
  decl::PartitionRef partition;
  FragmentDone done;
};
struct KeptReport {
  decl::PartitionRef partition;
  KeptValue value;
};
using Message = std::variant<NewRequest, PartitionSignal, CancelPass, Report, KeptReport>;

struct Running {
  decl::PartitionRef partition;
  ReadyNode node;
  LoopPath path;
};
struct Ahead {
  decl::PartitionRef partition;
  AheadStep step;
  std::vector<ReadyNode> feeders;
  std::map<std::size_t, Ids> known;  // by input
};
struct Worker {
  std::map<decl::PartitionRef, PartitionState> states;
  EarlySignals early;
  std::vector<Running> running;
  std::vector<Ahead> ahead;
  bool known = false;
  bool removed = false;
};
struct PartitionRun {
  PartitionProgress progress;
  std::unique_ptr<decl::Plan> plan;
  std::map<decl::PortRef, Ids> kept;
  std::set<decl::PortRef> kept_reported;
  std::map<decl::PortRef, Ids> client;  // of this pass
  std::int64_t client_values = 0;
  bool cancelled = false;
  bool done = false;
};
// One stream as the oracle sees it.
struct StreamRecord {
  Ids made;
  std::map<decl::PartitionRef, std::size_t> consumed;
  std::map<decl::PartitionRef, int> finals;
};

class Simulator {
 public:
  Simulator(const PlacedModel& placed, std::shared_ptr<const PlacedModel> owner, const decl::RequestParams& params,
            const Options& options)
      : placed_(placed),
        model_(placed.model()),
        decl_(model_.declaration()),
        params_(params),
        options_(options),
        rng_(options.seed),
        oracle_(model_) {
    num_workers_ = static_cast<std::size_t>(options.num_workers);
    channels_.resize((num_workers_ + 1) * (num_workers_ + 1));
    workers_.resize(num_workers_);
    std::set<decl::PortRef> given;
    NewRequest request;
    for (std::size_t p = 0; p < decl_.ports().size(); ++p)
      for (const decl::Travel& travel : decl_.ports()[p].travel) {
        const decl::PortRef port(static_cast<std::uint16_t>(p));
        if (const auto* from = std::get_if<decl::FromRequest>(&travel); from && (!from->optional || chance(0.7))) {
          given.insert(port);
          request.inputs.emplace_back(port, Values{make()});
        }
        if (std::holds_alternative<decl::FromClient>(travel))
          client_left_[port] = static_cast<int>(pick(static_cast<std::size_t>(options.client_items) + 1));
      }
    for (std::size_t w = 0; w < num_workers_; ++w) send(num_workers_, w, request);
    for (std::size_t p = 0; p < model_.partitions().size(); ++p) {
      const decl::PartitionRef ref(static_cast<std::uint16_t>(p));
      partitions_.push_back(
          {PartitionProgress(owner, ref, given), model_.at(ref).plan(params_), {}, {}, {}, 0, false, false});
      for (const auto& [port, values] : request.inputs) partitions_.back().kept[port] = ids_of(values);
    }
  }

  Outcome run() {
    for (std::size_t p = 0; p < partitions_.size(); ++p) next_walk(ref(p));
    for (std::int64_t action = 0; out_.faults.empty(); ++action) {
      if (action > 2'000'000) fault("the request does not end");
      if (!out_.aborted && options_.abort > 0 && chance(options_.abort)) abort();
      if (options_.cancel > 0 && !out_.aborted && chance(options_.cancel)) cancel(ref(pick(partitions_.size())));
      if (!act()) break;
    }
    if (out_.faults.empty() && !out_.aborted) check_end();
    finish();
    return std::move(out_);
  }

 private:
  // --- chance ---
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(rng_) < p; }
  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng_); }
  decl::PartitionRef ref(std::size_t p) const { return decl::PartitionRef(static_cast<std::uint16_t>(p)); }
  PartitionRun& at(decl::PartitionRef partition) { return partitions_[partition.value]; }
  Value make() { return Value(std::make_shared<Tracked>(++last_id_, live_)); }
  void fault(std::string what) { out_.faults.push_back(std::move(what)); }

  // --- network: in order per sender and receiver ---
  void send(std::size_t from, std::size_t to, Message message) {
    auto& channel = channels_[from * (num_workers_ + 1) + to];
    if (channel.empty()) busy_.push_back(from * (num_workers_ + 1) + to);
    const auto* signal = std::get_if<PartitionSignal>(&message);
    const bool twice = signal && from < num_workers_ && !std::holds_alternative<StreamEnd>(signal->signal) &&
                       chance(options_.duplicate);
    if (twice) channel.push_back(message);
    channel.push_back(std::move(message));
  }

  // One thing happens. False when nothing can.
  bool act() {
    std::vector<std::size_t> active;
    for (std::size_t w = 0; w < num_workers_; ++w)
      if (can_work(workers_[w])) active.push_back(w);
    std::vector<decl::PortRef> clients;
    for (const auto& [port, left] : client_left_)
      if (left >= 0) clients.push_back(port);
    const std::size_t choices = busy_.size() + active.size() + clients.size();
    if (choices == 0) return false;
    std::size_t choice = pick(choices);
    if (choice < busy_.size()) return receive(choice), true;
    choice -= busy_.size();
    if (choice < active.size()) return work(active[choice]), true;
    client_item(clients[choice - active.size()]);
    return true;
  }

  static bool can_work(const Worker& worker) {
    if (!worker.running.empty()) return true;
    return std::any_of(worker.states.begin(), worker.states.end(),
                       [](const auto& s) { return s.second.num_ready() > 0; });
  }

  void receive(std::size_t index) {
    const std::size_t key = busy_[index];
    Message message = std::move(channels_[key].front());
    channels_[key].pop_front();
    if (channels_[key].empty()) busy_.erase(busy_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::size_t to = key % (num_workers_ + 1);
    if (to == num_workers_) return conduct(std::move(message));
    Worker& worker = workers_[to];
    if (worker.removed) return;
    if (auto* request = std::get_if<NewRequest>(&message)) return admit(to, *request);
    if (auto* signal = std::get_if<PartitionSignal>(&message)) {
      if (!worker.known) {
        if (!worker.early.hold(RequestId(1), std::move(*signal))) fault("early signals are full");
        return;
      }
      return apply(to, std::move(*signal));
    }
    if (const auto* cut = std::get_if<CancelPass>(&message)) {
      const auto state = worker.states.find(cut->partition);
      if (state == worker.states.end()) return;
      if (std::optional<FragmentDone> done = state->second.cancel(true))
        send(to, num_workers_, Report{WorkerId(static_cast<std::uint32_t>(to)), cut->partition, std::move(*done)});
      drop_work(worker, cut->partition);
    }
  }

  static void drop_work(Worker& worker, decl::PartitionRef partition) {
    const auto of = [&](const auto& each) { return each.partition == partition; };
    worker.running.erase(std::remove_if(worker.running.begin(), worker.running.end(), of), worker.running.end());
    worker.ahead.erase(std::remove_if(worker.ahead.begin(), worker.ahead.end(), of), worker.ahead.end());
  }

  void admit(std::size_t w, const NewRequest& request) {
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

  std::shared_ptr<const PlacedModel> owner() const {
    return std::shared_ptr<const PlacedModel>(std::shared_ptr<const PlacedModel>(), &placed_);
  }

  void apply(std::size_t w, PartitionSignal signal) {
    Worker& worker = workers_[w];
    if (std::holds_alternative<Removal>(signal.signal)) {
      worker.removed = true;
      worker.states.clear();
      worker.running.clear();
      worker.ahead.clear();
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
  }

  // A stop of a peer may end steps that run here.
  static void void_running(Worker& worker, decl::PartitionRef partition) {
    const PartitionState& state = worker.states.at(partition);
    worker.running.erase(
        std::remove_if(worker.running.begin(), worker.running.end(),
                       [&](const Running& r) { return r.partition == partition && !state.is_current(r.node); }),
        worker.running.end());
  }

  // --- worker ---
  void work(std::size_t w) {
    Worker& worker = workers_[w];
    if (chance(options_.ahead)) try_ahead(worker);
    if (!worker.ahead.empty() && chance(0.1)) {  // given up before it is known whether it was right
      Ahead& ahead = worker.ahead[pick(worker.ahead.size())];
      worker.states.at(ahead.partition).rollback_ahead(ahead.step.node);
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

  void begin(Worker& worker, decl::PartitionRef partition, ReadyNode node) {
    const PartitionState& state = worker.states.at(partition);
    worker.running.push_back({partition, node, state.path(node.node)});
    check_inputs(state, partition, node.node);
  }

  std::string where(decl::PartitionRef partition, const PartitionState& state, NodeIndex node) const {
    const CompiledWalk& walk = model_.at(state.walk());
    (void)partition;
    return decl_.at(state.walk()).name + " pass " + std::to_string(state.pass()) + " node " + std::to_string(node) +
           " '" + decl_.at(walk.nodes[node].component).name() + "' " + print(state.path(node));
  }

  void check_inputs(const PartitionState& state, decl::PartitionRef partition, NodeIndex node) {
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

  Ids external(decl::PartitionRef partition, decl::PortRef port) {
    if (plan_given_[partition].count(port)) return plan_given_[partition][port];
    const auto kept = at(partition).kept.find(port);
    return kept == at(partition).kept.end() ? Ids{0} : kept->second;
  }

  bool check_chunk(const PartitionState& state, decl::PartitionRef partition, NodeIndex node, std::size_t input,
                   const Ids& got, const std::string& at_port) {
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

  bool all_consumed(decl::PartitionRef partition, decl::PortRef port) {
    return stream_total_.count(port) && streams_[port].consumed[partition] == streams_[port].made.size();
  }

  void complete(std::size_t w, std::size_t index) {
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
    if (!state.complete(run.node, outputs, signals, effects_)) return fault("a current step was refused");
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
  void note_stops(const Running& run, const PartitionState& state, const CompiledWalk& walk, const Node& node,
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

  static bool has_edge(const Output& out) {
    const auto any = [](const auto& list) {
      return std::any_of(list.begin(), list.end(), [](EdgeIndex e) { return e != kNoEdge; });
    };
    return any(out.forward) || any(out.back);
  }

  void try_ahead(Worker& worker) {
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
    worker.ahead.push_back(std::move(ahead));
  }

  void settle_ahead(Worker& worker, decl::PartitionRef partition) {
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
      }
      worker.ahead.erase(worker.ahead.begin() + static_cast<std::ptrdiff_t>(a));
    }
  }

  void publish(std::size_t w, decl::PartitionRef partition) {
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
    }
    for (Effects::Kept& kept : effects_.kept) {
      for (const WorkerId reader : kept.readers) send(w, reader.value, PartitionSignal{partition, kept.value});
      send(w, num_workers_, KeptReport{partition, std::move(kept.value)});
    }
    if (effects_.done)
      send(w, num_workers_, Report{WorkerId(static_cast<std::uint32_t>(w)), partition, std::move(*effects_.done)});
    effects_.clear();
  }

  // --- conductor ---
  void conduct(Message message) {
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
  bool budgeted(decl::PartitionRef partition) const {
    if (decl_.name() == "qwen3_tts") return true;
    for (const decl::WalkRef ref_of : model_.at(partition).walks)
      for (const CompiledLoop& loop : model_.at(ref_of).loops)
        if (const auto* rule = std::get_if<decl::TokenStop>(&loop.spec->stop); rule && !rule->prefill_walks.empty())
          return true;
    return false;
  }

  // A token port is left empty in a prefill that is not the last one.
  static bool is_withheld(const PartitionState& state, const Node& node, std::size_t output) {
    return std::any_of(node.stops.begin(), node.stops.end(), [&](const NodeStop& stop) {
      const std::string& flag = stop.rule->last_prefill_flag;
      return stop.loop == kNoLoop && stop.output == output && !flag.empty() && !state.flags().count(flag);
    });
  }

  void check_loop_ends(const Report& report, PartitionRun& partition) {
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

  void check_client(decl::PartitionRef partition) {
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

  void next_walk(decl::PartitionRef ref_of) {
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

  void end_partition(decl::PartitionRef ref_of) {
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
  void client_item(decl::PortRef port) {
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

  void cancel(decl::PartitionRef partition) {
    if (at(partition).cancelled || at(partition).done || !at(partition).progress.running()) return;
    at(partition).cancelled = true;
    for (const WorkerId worker : placed_.workers(partition)) send(num_workers_, worker.value, CancelPass{partition});
  }

  void abort() {
    out_.aborted = true;
    for (auto& [port, left] : client_left_) left = -1;
    for (std::size_t w = 0; w < num_workers_; ++w) send(num_workers_, w, PartitionSignal{{}, Removal{}});
  }

  void check_end() {
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
  }

  void finish() {
    for (Worker& worker : workers_) worker = Worker();
    channels_.clear();
    partitions_.clear();
    effects_ = {};
    out_.live_values = live_;
  }

  const PlacedModel& placed_;
  const CompiledModel& model_;
  const decl::Decl& decl_;
  const decl::RequestParams& params_;
  Options options_;
  std::mt19937_64 rng_;
  std::int64_t live_ = 0;
  std::int64_t last_id_ = 0;
  Oracle oracle_;
  Outcome out_;
  std::size_t num_workers_ = 1;
  std::vector<std::deque<Message>> channels_;
  std::vector<std::size_t> busy_;
  std::vector<Worker> workers_;
  std::vector<PartitionRun> partitions_;
  std::map<decl::PortRef, StreamRecord> streams_;
  std::map<decl::PortRef, std::int64_t> stream_total_;
  std::map<decl::PortRef, int> client_left_;
  std::map<decl::PartitionRef, std::map<decl::PortRef, Ids>> plan_given_;
  std::map<decl::PartitionRef, std::map<std::string, int>> caps_;
  std::map<std::vector<std::int32_t>, std::int32_t> stop_at_;
  Effects effects_;
};

}  // namespace

Outcome run(const PlacedModel& placed, std::shared_ptr<const PlacedModel> owner, const decl::RequestParams& params,
            const Options& options) {
  return Simulator(placed, std::move(owner), params, options).run();
}

std::shared_ptr<const PlacedModel> random_placement(const CompiledModel& model, std::uint64_t seed, int num_workers,
                                                    bool by_walk) {
  std::mt19937_64 rng(seed);
  const auto worker = [&] {
    return WorkerId(static_cast<std::uint32_t>(rng() % static_cast<std::uint64_t>(num_workers)));
  };
  for (int attempt = 0; attempt < 20; ++attempt) {
    RequestPlacement placement(model, WorkerId(0));
    for (std::size_t c = 0; c < model.declaration().components().size(); ++c) {
      const decl::ComponentRef component(static_cast<std::uint16_t>(c));
      placement.set(component, worker());
      if (!by_walk || attempt > 10) continue;
      for (const CompiledWalk& walk : model.walks()) placement.set(component, walk.ref, worker());
    }
    if (auto placed = PlacedModel::place(model, placement)) return *placed;
  }
  auto placed = PlacedModel::place(model, RequestPlacement(model, WorkerId(0)));
  return placed ? *placed : nullptr;
}

}  // namespace mstar::graph::sim
