// A worker: the owner of one device's engines and resources, or of the host components. Turns walk signals into steps
// and step results into walk signals.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mstar/base/clock.h"
#include "mstar/base/queue.h"
#include "mstar/base/step_profile.h"
#include "mstar/engine/engine.h"
#include "mstar/graph/partition_state.h"
#include "mstar/wire/messages.h"
#include "mstar/worker/host_pool.h"
#include "mstar/worker/load_model.h"
#include "mstar/worker/step_leader.h"
#include "mstar/worker/step_pace.h"

namespace mstar::worker {

struct WorkerOptions {
  WorkerId id;
  Device* device = nullptr;           // null: this worker runs host components only
  ThreadPool* pool = nullptr;         // of CPU steps
  HostExecutor* host_pool = nullptr;  // null: this worker runs no host components
  bool run_ahead = true;              // false, for comparison: no step is launched before the one before it was read
  std::vector<WorkerModel> models;
  std::shared_ptr<StepGroup> group = {};  // that this worker leads; null: none, and no model has components in step
  std::function<void(const wire::WorkerStats&)> on_stats;  // may be empty; called by the owner thread when they changed
  StepProfile* profile = nullptr;                          // of this worker's loop; outlives it
  const Clock* clock = nullptr;                            // outlives the worker; null: the steady clock
  // How long its thread looks for messages before it sleeps, where the next one is near: when its only request was
  // added, or its last one has gone, whose client may send the next at once.
  std::chrono::microseconds stays_awake = {};
};

// On an asynchronous device the loop runs one step ahead: while step N runs, N+1 is built and launched from what has
// arrived and from rows that N's outputs will feed, and only then is N read. Such a row is certain once N completed and
// the graph says that it is in fact next; else it is rolled back when N+1 is read, and nothing of it is ever seen. So a
// stop wastes at most one row, and answers are the same bits as without. On the CPU, where a forward is done when its
// call returns, each step is read at once. Behind a long step with prompts, and where the step that was just read ended
// walks, which others may follow at once, the next one is built late (StepPace), so that what arrives meanwhile is in
// it: by the loop on a thread of its own, or with a clock that was given. Who polls a worker to its rest is not kept
// waiting.
//
// Owner thread: its own, started by start(), or else the one that calls poll(); every private member belongs to it.
// send(), stats() and num_turns(): any thread. A request's failure stays its own: what a component reports or throws
// for one row ends that row's request, what cannot be attributed ends the requests of the batch.
class Worker {
 public:
  Worker(WorkerOptions options, wire::Mesh& mesh);
  // Host components that run still are told to give up, and may end later: they hold what they need.
  ~Worker();
  // Loads weights and builds engines on the calling thread. bad_model, exhausted. Nothing is loaded yet.
  Status load();
  // load(), then the loop on a thread of its own.
  Status start();
  // Ends the loop and waits for its thread. Workers send to each other until they stop, so stop them all before the
  // first one is destroyed. May be called again. Thread: the one that called start().
  void stop();
  // One turn of the loop: takes the messages that have arrived and runs one slice of one step. False when there was
  // nothing to do now, as also while the next step is built late; statistics are then up to date, but for those of
  // steps that are younger than 50 ms. The first turn tells the conductor that this worker is ready.
  bool poll();
  bool send(wire::ToWorker message) { return inbox_->push(Inbox(std::move(message))); }
  // The group that it leads once its own has ended: from the next wire::Load on it lets go of all that it has loaded,
  // when its requests are gone, and loads it again with this one. Thread: any.
  void set_next_group(std::shared_ptr<StepGroup> group);
  bool stopping() const { return stopping_; }
  wire::WorkerStats stats() const;
  // Turns of the loop so far; an idle loop turns a few times a second. Whoever sees it stand still sees a worker that
  // hangs. Thread: any.
  std::uint64_t num_turns() const { return num_turns_; }

 private:
  struct StageDone {  // a host stage ran
    RequestId request;
    decl::PartitionRef partition;
    decl::ComponentRef component;
    graph::ReadyNode node;
    Result<decl::HostOutputs> outputs;
  };
  struct Stage {                             // a host component of one request
    std::shared_ptr<decl::HostStage> stage;  // owners: this and its run on the pool
    bool busy = false;                       // one run at a time: stages keep state
    std::deque<std::pair<decl::PartitionRef, graph::ReadyNode>> waiting;
  };
  struct Live;
  struct Pending {  // a ready node of a device component
    RequestId request;
    decl::PartitionRef partition;
    graph::ReadyNode node;
    Live* live = nullptr;                          // the request: it takes its nodes out of all queues when it goes
    const graph::PartitionState* state = nullptr;  // of the partition
    engine::Progress progress = {};
  };
  enum class Standing : std::uint8_t {
    certain,
    ahead,    // launched before its inputs were known; pending.node has the ticket of the step ahead
    unwanted  // is not to be: rolled back when its step ends
  };
  struct Row {  // of a step
    Pending pending;
    Live* live = nullptr;  // the request, which counts it in num_in_flight; null when the row is not in flight any more
    Standing standing = Standing::certain;
    std::vector<graph::ReadyNode> waits_for = {};  // nodes of the partition that complete before it is certain
    bool undo = false;  // unwanted, and its request's label becomes what it was before the row's first part
  };
  struct Promise {  // of a launched row: its outputs, on the device
    decl::PartitionRef partition;
    graph::ReadyNode node;
    const engine::RowResult* result = nullptr;  // of the step in flight
  };
  struct Live {
    RequestId request;
    std::uint32_t model = 0;
    std::shared_ptr<const decl::RequestParams> params;
    std::shared_ptr<const graph::PlacedModel> placed;
    std::vector<std::unique_ptr<graph::PartitionState>> partitions;  // null where this worker takes no part
    std::map<decl::ComponentRef, Stage> stages;
    int num_in_flight = 0;  // rows of steps and host stages
    int num_unwanted = 0;   // rows in flight that will be rolled back
    std::vector<Promise> promises;
    std::vector<Row*> ahead;  // in flight, and not certain yet
    // Of resources that come from other workers: how many are due, or have come early where it is below 0.
    std::int64_t num_states_due = 0;
    std::int64_t waits_since_us = 0;
    std::vector<Pending> held;  // device nodes that wait for them
    bool failed = false;        // reported; its work is dropped until the removal
    bool removing = false;
    // Owners: this and host stages that run. Set when nobody waits for them any more.
    std::shared_ptr<std::atomic<bool>> abandoned = std::make_shared<std::atomic<bool>>(false);
    bool over() const { return failed || removing; }
    ~Live() { *abandoned = true; }
  };
  struct Lane;
  struct Follower {  // a node that a launched row feeds: a candidate for the next step of its lane
    Lane* lane = nullptr;
    RequestId request;
    decl::PartitionRef partition;
    graph::NodeIndex node = graph::kNoNode;
    bool tried = false;
  };
  struct Batch {  // one step with its rows
    Lane* lane = nullptr;
    engine::StepPtr step = {};
    std::vector<Row> rows = {};  // by RowInputs::tag
    std::vector<Follower> followers = {};
    std::int64_t launched_ns = 0;  // where there is a profile
    engine::Engine::StepShape shape = {};
    // On a device that works by itself: when its time there began, as far as the host has seen; how long its launch
    // took the host; and how long after its begin the next step should be built.
    std::int64_t begun_us = 0, launch_us = 0, slack_us = 0;  // launch_us is 0 of what was not launched
  };
  struct Lane {  // one engine with its queue
    std::uint32_t model = 0;
    std::unique_ptr<engine::Engine> engine;
    LaneSteps steps;           // what is done with the engine goes through them
    std::size_t profiled = 0;  // its number in the profile
    std::deque<Pending> queue;
    std::optional<Batch> open;  // being built, or between two slices
    int num_launched = 0;       // steps in flight
    bool runs_ahead = false;
    std::array<StepPace, kNumStepKinds> paces;
    std::uint64_t last_turn = 0;
    bool blocked = false;                      // every queued row waits for resources; retried when some are given back
    std::vector<std::uint32_t> group_of_walk;  // rows of one group may share a step; empty: all may
    std::map<std::uint32_t, std::uint64_t> group_turns;  // last step of each group that had one
    std::uint32_t group_of(decl::WalkRef walk) const { return group_of_walk.empty() ? 0 : group_of_walk[walk.value]; }
  };
  struct ModelState {
    engine::ResourceSet resources;
    std::map<std::vector<WorkerId>, std::shared_ptr<const graph::PlacedModel>> placements;
    std::vector<std::vector<std::vector<graph::NodeIndex>>> followers;  // by walk and node: those that the node feeds
  };
  using Inbox = std::variant<wire::ToWorker, StageDone>;

  // worker.cc: life and messages
  void run();
  void tell_conductor(wire::ToConductor message);
  wire::ClientValues& open_batch(std::size_t num_bytes);
  void flush_to_conductor();
  Status load_lanes(std::uint32_t model);
  void report_ended_group();
  bool take_messages();
  void on_message(Inbox message);
  void on(wire::AddRequest message);
  void on(wire::PartitionMessage message);
  void on(wire::CancelPartition message);
  void on(const wire::RemoveRequest& message);
  void on(wire::HandOver message);
  void on(const wire::AwaitState& message);
  void on(wire::StateParcel message);
  void on(const wire::Unload&) { unloads_ = true; }
  void on(const wire::Load&);
  void on(const wire::Shutdown&) { stopping_ = true; }
  void on(StageDone message);
  Result<std::unique_ptr<Live>> make_live(wire::AddRequest& message);
  Live* find(RequestId request);
  void fail(Live& live, Error error);
  // Runs `body`; what it throws fails the request.
  template <class Body>
  void guarded(Live& live, Body&& body);
  void fail_after(Live& live, const std::exception& error);
  void release_in_flight(Live& live);
  void finish_removal(Live& live);
  bool is_at_rest() const;
  void unload_at_rest();
  void reload_at_rest();
  void let_go();
  void stay_awake();
  void publish_stats_when_due(bool idle);
  void publish_stats();

  // worker_stages.cc: host components
  void start_stage(Live& live, decl::PartitionRef partition, graph::ReadyNode node);
  void start_waiting_stage(Live& live, Stage& stage);
  Result<std::shared_ptr<decl::HostInputs>> stage_inputs(const Live& live, decl::PartitionRef partition,
                                                         graph::ReadyNode node) const;

  // worker_moves.cc: state that leaves for another worker, or comes from one
  void send_states();
  bool has_rows_in_flight(const Live& live, decl::PartitionRef partition) const;
  Result<wire::StateParcel> take_states(const wire::HandOver& order, const Live& live);
  void release_held(Live& live);

  // worker_steps.cc: device components
  bool step_once();
  // worker_pace.cc: when the next step is built
  bool waits_for_arrivals();
  std::chrono::microseconds left_to_wait() const;
  void note_launch(Batch& batch);
  void note_end(Batch& batch);
  std::int64_t slack_us(const Batch& running, bool ended_walks) const;
  static StepPace& pace_of(const Batch& batch);
  Lane* next_lane();
  void run_slice(Lane& lane);
  Result<bool> advance(Lane& lane);
  bool device_is_busy() const;
  std::vector<std::uint32_t> groups_in_turn(const Lane& lane);
  std::optional<std::uint32_t> group_of(const Lane& lane, RequestId request, decl::PartitionRef partition);
  void take_rows(Lane& lane, std::uint32_t group, std::vector<engine::RowInputs>& inputs);
  void add_row(Lane& lane, Live& live, Row row, engine::RowInputs input, std::vector<engine::RowInputs>& inputs);
  static bool clashes(const engine::RowInputs& row, const std::vector<engine::RowInputs>& inputs);
  engine::RowInputs row_inputs(const Live& live, const Pending& pending) const;
  bool begin_step(Lane& lane);
  bool begin_step(Lane& lane, std::uint32_t group);
  void end_oldest_step();
  void end_row(Lane& lane, Row& row, engine::RowResult& result);
  void undo_cut_off(Live& live, decl::PartitionRef partition);
  void abandon(Batch& batch, const Error& error);
  static bool is_wanted(const Batch& batch);
  static void prefetch(const Pending& row, std::size_t distance);
  Live& take_off(Row& row);
  void put_back(Lane& lane, Row& row, const engine::Progress& progress);
  void unblock_lanes();

  // worker_ahead.cc: rows that are launched before they are certain
  void find_followers(std::uint32_t model);
  bool has_followers(const Lane& lane) const;
  void promise_outputs(Batch& batch);
  void take_followers(Lane& lane, std::uint32_t group, std::vector<engine::RowInputs>& inputs);
  void try_ahead(Lane& lane, const Follower& follower, std::vector<engine::RowInputs>& inputs);
  std::optional<engine::RowInputs> ahead_inputs(const Live& live, const Follower& follower,
                                                const graph::AheadStep& step) const;
  void settle_ahead(Live& live, decl::PartitionRef partition);
  void give_up(Live& live, Row& row);
  void withdraw_promises(const Batch& batch);

  // worker_results.cc: from a node's outputs to signals
  void complete(Live& live, decl::PartitionRef partition, graph::ReadyNode node, std::vector<Values> outputs,
                const std::vector<std::string>& stopped_loops);
  graph::StopSignals find_stops(const Live& live, const graph::PartitionState& state, const graph::Node& node,
                                const std::vector<Values>& outputs, std::vector<graph::LoopIndex>& loops) const;
  void collect_ready(Live& live, decl::PartitionRef partition);
  void send_effects(Live& live, decl::PartitionRef partition, graph::Effects& effects);
  void send_signal(Live& live, WorkerId worker, decl::PartitionRef partition, graph::Signal signal);
  bool send_client(Live& live, graph::Effects::Client& client);

  WorkerOptions options_;
  const SteadyClock steady_clock_;
  const Clock& clock_;
  wire::Mesh& mesh_;
  std::shared_ptr<Queue<Inbox>> inbox_ = std::make_shared<Queue<Inbox>>();  // owners: this and host stages that run
  std::vector<ModelState> models_;
  std::unique_ptr<StepLeader> leader_;  // null: no other ranks work in step with this one
  bool told_group_ended_ = false;
  bool followers_wait_ = false;  // they have let go, and load when the log says so
  std::vector<Lane> lanes_;      // stand still after load()
  std::deque<Batch> in_flight_;  // launched, oldest first; ends in this order
  std::size_t max_in_flight_ = 1;
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::size_t> lane_of_;  // (model, component)
  std::shared_ptr<engine::BufferPool> buffers_;
  std::unordered_map<RequestId, std::unique_ptr<Live>> requests_;
  graph::EarlySignals early_;
  RequestId last_added_ = RequestId(0);  // requests are added in the order of their ids: older unknown ones are gone
  graph::Effects effects_;
  std::vector<wire::ToConductor> to_conductor_;  // not sent yet
  std::size_t batch_bytes_ = 0;                  // of the values in the last of them
  std::uint64_t turn_ = 0;
  std::atomic<std::uint64_t> num_turns_{0};
  std::uint64_t num_handed_over_ = 0, handed_over_bytes_ = 0;         // to other workers
  std::vector<wire::HandOver> hand_overs_;                            // that wait for rows in flight
  std::map<RequestId, std::vector<wire::StateParcel>> early_states_;  // of requests that are not known yet
  std::uint64_t num_states_in_ = 0, state_in_bytes_ = 0, state_wait_us_ = 0;
  bool announced_ = false;
  bool is_loaded_ = false;
  bool unloads_ = false;  // once nothing runs
  bool reloads_ = false;  // the same, and begins again with next_group_
  std::mutex group_mutex_;
  std::shared_ptr<StepGroup> next_group_;  // guarded by it; null: none has come since the last one was taken
  bool builds_late_ = false;
  bool held_ = false;  // the next step waits for requests to arrive
  std::uint64_t num_ended_walks_ = 0;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point awake_until_ = {};
  bool stats_stale_ = true;
  std::int64_t stats_at_us_ = 0;
  mutable std::mutex stats_mutex_;
  wire::WorkerStats stats_;
  std::thread thread_;
};

template <class Body>
void Worker::guarded(Live& live, Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    fail_after(live, error);
  }
}

}  // namespace mstar::worker
