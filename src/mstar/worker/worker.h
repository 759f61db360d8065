// A worker: the owner of one device's engines and resources, or of the host components. Turns walk signals into steps and
// step results into walk signals.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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
  const graph::CompiledModel* compiled = nullptr;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // null for models without weights
  std::vector<decl::ComponentRef> components;       // device components that this worker runs
  resource::PoolLimits limits;
};

struct WorkerOptions {
  WorkerId id;
  Device* device = nullptr;   // null: this worker runs host components only
  ThreadPool* pool = nullptr;  // of CPU steps
  HostPool* host_pool = nullptr;
  std::vector<WorkerModel> models;
};

// What /metrics says of a worker.
struct WorkerStats {
  std::vector<resource::Usage> resources;
  std::map<std::string, engine::StepCounters> components;
  std::int64_t num_requests = 0;
  std::size_t weight_bytes = 0;
  std::size_t arena_bytes = 0;
  std::size_t buffer_bytes = 0;
};

// Owner thread: its own, started by start(); every private member belongs to it. send() and stats(): any thread.
class Worker {
 public:
  Worker(WorkerOptions options, wire::Mesh& mesh);
  ~Worker();
  // Loads weights and builds engines on the calling thread, then starts the loop. bad_model, exhausted.
  Status start();
  bool send(wire::ToWorker message) { return inbox_.push(std::move(message)); }
  WorkerStats stats() const;

 private:
  struct StageDone {  // a host stage ran
    RequestId request;
    decl::PartitionRef partition;
    graph::ReadyNode node;
    Result<decl::HostOutputs> outputs;
  };
  struct Live {
    RequestId request;
    std::uint32_t model = 0;
    std::shared_ptr<const decl::RequestParams> params;
    std::shared_ptr<const graph::PlacedModel> placed;
    std::vector<std::unique_ptr<graph::PartitionState>> partitions;  // null where this worker takes no part
    std::map<std::uint16_t, std::unique_ptr<decl::HostStage>> stages;  // by component
    std::map<std::uint16_t, bool> stage_busy;
    std::deque<std::pair<decl::PartitionRef, graph::ReadyNode>> waiting_stages;
    int num_in_flight = 0;  // rows of steps and host stages
    bool failed = false;    // reported; its work is dropped until the removal
    bool removing = false;
  };
  struct Pending {  // a ready node of a device component
    RequestId request;
    decl::PartitionRef partition;
    graph::ReadyNode node;
    bool waiting = false;  // was refused by admission once
  };
  struct Lane {  // one engine with its queue
    std::uint32_t model = 0;
    std::unique_ptr<engine::Engine> engine;
    std::deque<Pending> queue;
    engine::StepPtr step;  // between prepare and finish
    std::vector<Pending> rows;           // of `step`
    std::uint64_t last_turn = 0;
    bool blocked = false;  // every queued row waits for resources; retried when some are given back
  };
  struct ModelState {
    engine::ResourceSet resources;
    std::map<std::vector<WorkerId>, std::shared_ptr<const graph::PlacedModel>> placements;
  };
  using Inbox = std::variant<wire::ToWorker, StageDone>;

  void run();
  void on_message(Inbox message);
  void on(wire::AddRequest message);
  void on(wire::PartitionMessage message);
  void on(wire::CancelPartition message);
  void on(wire::RemoveRequest message);
  void on(wire::Shutdown) { stopping_ = true; }
  void on(StageDone message);

  Live* find(RequestId request);
  void collect_ready(Live& live, decl::PartitionRef partition);
  void start_stage(Live& live, decl::PartitionRef partition, graph::ReadyNode node);
  bool step_once();
  Lane* next_lane();
  bool begin_step(Lane& lane);
  void end_step(Lane& lane);
  void complete(Live& live, decl::PartitionRef partition, graph::ReadyNode node, std::vector<Values> outputs,
                const std::vector<std::string>& stopped_loops);
  void send_effects(Live& live, decl::PartitionRef partition, graph::Effects& effects);
  void fail(Live& live, Error error);
  void finish_removal(Live& live);
  void unblock_lanes();
  void publish_stats();

  WorkerOptions options_;
  wire::Mesh& mesh_;
  Queue<Inbox> inbox_;
  std::vector<ModelState> models_;
  std::vector<Lane> lanes_;
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::size_t> lane_of_;  // (model, component)
  std::shared_ptr<engine::BufferPool> buffers_;
  std::unordered_map<RequestId, std::unique_ptr<Live>> requests_;
  graph::EarlySignals early_;
  graph::Effects effects_;
  std::uint64_t turn_ = 0;
  bool stopping_ = false;
  mutable std::mutex stats_mutex_;
  WorkerStats stats_;
  std::thread thread_;
};

}  // namespace mstar::worker
