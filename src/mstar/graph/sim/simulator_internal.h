// The inside of the simulated request, by side: simulator.cc, worker_side.cc, conductor_side.cc.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mstar/graph/sim/ledger.h"
#include "mstar/graph/sim/oracle.h"
#include "mstar/graph/sim/simulator.h"

namespace mstar::graph::sim {

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
  Ledger ledger;
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
            const Options& options);
  Outcome run();

 private:
  // --- chance ---
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(rng_) < p; }
  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng_); }
  decl::PartitionRef ref(std::size_t p) const { return decl::PartitionRef(static_cast<std::uint16_t>(p)); }
  PartitionRun& at(decl::PartitionRef partition) { return partitions_[partition.value]; }
  Value make() { return Value(std::make_shared<Tracked>(++last_id_, live_)); }
  void fault(std::string what) { out_.faults.push_back(std::move(what)); }

  // --- network: in order per sender and receiver ---
  void send(std::size_t from, std::size_t to, Message message);
  bool act();
  static bool can_work(const Worker& worker);
  void receive(std::size_t index);
  static void drop_work(Worker& worker, decl::PartitionRef partition);
  void admit(std::size_t w, const NewRequest& request);
  std::shared_ptr<const PlacedModel> owner() const;
  void apply(std::size_t w, PartitionSignal signal);
  static void void_running(Worker& worker, decl::PartitionRef partition);
  // --- worker ---
  void work(std::size_t w);
  void begin(Worker& worker, decl::PartitionRef partition, ReadyNode node);
  void check_not_stopped(const PartitionState& state, decl::PartitionRef partition, NodeIndex node);
  std::string where(decl::PartitionRef partition, const PartitionState& state, NodeIndex node) const;
  void check_inputs(const PartitionState& state, decl::PartitionRef partition, NodeIndex node);
  Ids external(decl::PartitionRef partition, decl::PortRef port);
  bool check_chunk(const PartitionState& state, decl::PartitionRef partition, NodeIndex node, std::size_t input,
                   const Ids& got, const std::string& at_port);
  bool all_consumed(decl::PartitionRef partition, decl::PortRef port);
  void complete(std::size_t w, std::size_t index);
  void note_stops(const Running& run, const PartitionState& state, const CompiledWalk& walk, const Node& node,
                  const std::vector<LoopIndex>& stops);
  static bool has_edge(const Output& out);
  void try_ahead(Worker& worker);
  void settle_ahead(Worker& worker, decl::PartitionRef partition);
  void publish(std::size_t w, decl::PartitionRef partition);
  // --- conductor ---
  void conduct(Message message);
  bool budgeted(decl::PartitionRef partition) const;
  static bool is_withheld(const PartitionState& state, const Node& node, std::size_t output);
  void check_loop_ends(const Report& report, PartitionRun& partition);
  void check_client(decl::PartitionRef partition);
  void next_walk(decl::PartitionRef ref_of);
  void end_partition(decl::PartitionRef ref_of);
  void client_item(decl::PortRef port);
  void cancel(decl::PartitionRef partition);
  void abort();
  void check_end();
  void check_ledgers();
  void check_tokens();
  void finish();
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
  std::map<decl::PortRef, std::int64_t> tokens_made_;       // of ports that count tokens
  std::map<decl::PortRef, std::int64_t> tokens_delivered_;  // to the client
  Effects effects_;
};

}  // namespace mstar::graph::sim
