// A worker: the owner of one device's engines and resources, or of the host components. Turns walk signals into steps
// and step results into walk signals.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mstar/base/queue.h"
#include "mstar/engine/engine.h"
#include "mstar/graph/partition_state.h"
#include "mstar/weights/weight_map.h"
#include "mstar/wire/messages.h"
#include "mstar/worker/host_pool.h"

namespace mstar::worker {

// One model as a worker sees it. Borrowed parts outlive the worker.
struct WorkerModel {
  std::string name;  // as served, for statistics
  const graph::CompiledModel* compiled = nullptr;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // null for models without weights
  std::vector<decl::ComponentRef> components;             // device components that this worker runs
  resource::PoolLimits limits;
};

struct WorkerOptions {
  WorkerId id;
  Device* device = nullptr;           // null: this worker runs host components only
  ThreadPool* pool = nullptr;         // of CPU steps
  HostExecutor* host_pool = nullptr;  // null: this worker runs no host components
  std::vector<WorkerModel> models;
  std::function<void(const wire::WorkerStats&)> on_stats;  // may be empty; called by the owner thread when they changed
};

// Owner thread: its own, started by start(), or else the one that calls poll(); every private member belongs to it.
// send() and stats(): any thread. A request's failure stays its own: what a component reports or throws for one row
// ends that row's request, what cannot be attributed ends the requests of the batch.
class Worker {
 public:
  Worker(WorkerOptions options, wire::Mesh& mesh);
  // Host components that run still may end later: they hold what they need.
  ~Worker();
  // Loads weights and builds engines on the calling thread. bad_model, exhausted.
  Status load();
  // load(), then the loop on a thread of its own.
  Status start();
  // Ends the loop and waits for its thread. Workers send to each other until they stop, so stop them all before the
  // first one is destroyed. May be called again. Thread: the one that called start().
  void stop();
  // One turn of the loop: takes the messages that have arrived and runs one slice of one step. False when there was
  // nothing to do; statistics are then up to date, but for those of steps that are younger than 50 ms. The first turn
  // tells the conductor that this worker is ready.
  bool poll();
  bool send(wire::ToWorker message) { return inbox_->push(Inbox(std::move(message))); }
  bool stopping() const { return stopping_; }
  wire::WorkerStats stats() const;

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
  struct Live {
    RequestId request;
    std::uint32_t model = 0;
    std::shared_ptr<const decl::RequestParams> params;
    std::shared_ptr<const graph::PlacedModel> placed;
    std::vector<std::unique_ptr<graph::PartitionState>> partitions;  // null where this worker takes no part
    std::map<decl::ComponentRef, Stage> stages;
    int num_in_flight = 0;  // rows of steps and host stages
    bool failed = false;    // reported; its work is dropped until the removal
    bool removing = false;
    bool over() const { return failed || removing; }
  };
  struct Pending {  // a ready node of a device component
    RequestId request;
    decl::PartitionRef partition;
    graph::ReadyNode node;
  };
  struct Row {  // of a step; counted in its request's num_in_flight while `in_flight`
    Pending pending;
    bool in_flight = true;
  };
  struct Lane {  // one engine with its queue
    std::uint32_t model = 0;
    std::unique_ptr<engine::Engine> engine;
    std::deque<Pending> queue;
    engine::StepPtr step;   // between prepare and finish
    std::vector<Row> rows;  // by RowInputs::tag
    std::uint64_t last_turn = 0;
    bool blocked = false;  // every queued row waits for resources; retried when some are given back
  };
  struct ModelState {
    engine::ResourceSet resources;
    std::map<std::vector<WorkerId>, std::shared_ptr<const graph::PlacedModel>> placements;
  };
  using Inbox = std::variant<wire::ToWorker, StageDone>;

  // worker.cc: life and messages
  void run();
  void on_message(Inbox message);
  void on(wire::AddRequest message);
  void on(wire::PartitionMessage message);
  void on(wire::CancelPartition message);
  void on(const wire::RemoveRequest& message);
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
  void publish_stats_when_due();
  void publish_stats();

  // worker_stages.cc: host components
  void start_stage(Live& live, decl::PartitionRef partition, graph::ReadyNode node);
  void start_waiting_stage(Live& live, Stage& stage);
  Result<std::shared_ptr<decl::HostInputs>> stage_inputs(const Live& live, decl::PartitionRef partition,
                                                         graph::ReadyNode node) const;

  // worker_steps.cc: device components
  bool step_once();
  Lane* next_lane();
  void take_rows(Lane& lane, std::vector<engine::RowInputs>& inputs);
  engine::RowInputs row_inputs(const Live& live, const Pending& pending) const;
  bool begin_step(Lane& lane);
  void end_step(Lane& lane);
  void abandon_step(Lane& lane, const Error& error);
  bool is_wanted(const Lane& lane);
  Live& take_off(Row& row);
  void unblock_lanes();

  // worker_results.cc: from a node's outputs to signals
  void complete(Live& live, decl::PartitionRef partition, graph::ReadyNode node, std::vector<Values> outputs,
                const std::vector<std::string>& stopped_loops);
  graph::StopSignals find_stops(const Live& live, const graph::PartitionState& state, const graph::Node& node,
                                const std::vector<Values>& outputs, std::vector<graph::LoopIndex>& loops) const;
  void collect_ready(Live& live, decl::PartitionRef partition);
  void send_effects(Live& live, decl::PartitionRef partition, graph::Effects& effects);
  void send_signal(const Live& live, WorkerId worker, decl::PartitionRef partition, graph::Signal signal);
  bool send_client(Live& live, graph::Effects::Client& client);

  WorkerOptions options_;
  wire::Mesh& mesh_;
  std::shared_ptr<Queue<Inbox>> inbox_ = std::make_shared<Queue<Inbox>>();  // owners: this and host stages that run
  std::vector<ModelState> models_;
  std::vector<Lane> lanes_;
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::size_t> lane_of_;  // (model, component)
  std::shared_ptr<engine::BufferPool> buffers_;
  std::unordered_map<RequestId, std::unique_ptr<Live>> requests_;
  graph::EarlySignals early_;
  RequestId last_added_ = RequestId(0);  // requests are added in the order of their ids: older unknown ones are gone
  graph::Effects effects_;
  std::uint64_t turn_ = 0;
  bool announced_ = false;
  bool stopping_ = false;
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
