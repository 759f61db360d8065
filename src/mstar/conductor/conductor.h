// The conductor: each request's life, from admission to its one terminal event. Plain logic; sees no device.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mstar/base/queue.h"
#include "mstar/conductor/frontend.h"
#include "mstar/decl/decl.h"
#include "mstar/graph/partition_progress.h"
#include "mstar/wire/messages.h"

namespace mstar::conductor {

// Components that are placed together: `replicas` are the workers that each run all of them.
struct NodeGroup {
  std::string name;
  std::vector<decl::ComponentRef> components;
  std::vector<WorkerId> replicas;
};

// One served model. Borrowed parts outlive the conductor.
struct ServedDeployment {
  std::string name;
  std::vector<std::string> aliases;
  const graph::CompiledModel* compiled = nullptr;
  std::vector<NodeGroup> groups;  // every component is in exactly one
};

enum class Routing : std::uint8_t { least_loaded, random };

struct ConductorOptions {
  std::vector<ServedDeployment> models;
  std::vector<WorkerId> workers;
  int max_concurrent_requests = 16;
  int max_queued_requests = 256;
  Routing routing = Routing::least_loaded;
  std::uint64_t seed = 0;  // of ties and random routing
  std::function<std::string()> worker_metrics;  // Prometheus text of the workers; may be empty
};

// Owner thread: its own, for all private state below the marker. Frontend calls: any thread.
class Conductor final : public Frontend {
 public:
  Conductor(ConductorOptions options, wire::Mesh& mesh);
  ~Conductor() override;
  void start();
  void receive(wire::ToConductor message) { inbox_.push(Inbox(std::move(message))); }

  Result<RequestId> submit(decl::ApiRequest request, std::shared_ptr<EventSink> sink) override;
  void abort(RequestId request) override { inbox_.push(Inbox(Abort{request})); }
  std::vector<ServedModel> models() const override;
  RuntimeState state() const override;
  std::string metrics_text() const override;

  // New requests are refused with `unavailable`; true when none was left within the time.
  bool drain(std::chrono::milliseconds timeout);
  // Waits until every worker is ready or one has failed.
  Status wait_ready(std::chrono::milliseconds timeout);

 private:
  struct Submit {
    RequestId id;
    std::uint32_t model = 0;
    const decl::Surface* surface = nullptr;
    std::shared_ptr<const decl::RequestParams> params;
    std::map<decl::PortRef, std::vector<HostValue>> inputs;
    std::shared_ptr<EventSink> sink;  // owners: the server's connection and this request
    std::int64_t num_prompt_tokens = 0;
  };
  struct Abort {
    RequestId id;
  };
  struct Stop {};
  using Inbox = std::variant<wire::ToConductor, Submit, Abort, Stop>;

  struct Partition {
    std::unique_ptr<decl::Plan> plan;
    std::unique_ptr<graph::PartitionProgress> progress;
    bool done = false;
    decl::Finish finish = decl::Finish::stop;
  };
  struct Request {
    Submit submit;
    std::shared_ptr<const graph::PlacedModel> placed;
    std::vector<std::pair<std::size_t, WorkerId>> replicas;  // (group, worker) chosen
    std::vector<Partition> partitions;
    std::map<decl::PortRef, std::vector<HostValue>> kept;
    std::set<WorkerId> workers;   // that know of it
    std::set<WorkerId> removing;  // that have not confirmed the removal
    Params metadata;
    bool ended = false;  // the sink has its terminal event
  };

  // ---- owner thread ----
  void run();
  void on(Submit message);
  void on(const Abort& message);
  void on(wire::ToConductor message);
  void on(const wire::WorkerReady& message);
  void on(const wire::WorkerFailed& message);
  void on(wire::FragmentReport message);
  void on(wire::ClientValue message);
  void on(wire::RequestFailed message);
  void on(const wire::Removed& message);
  void admit();
  void begin(Submit submit);
  Result<std::shared_ptr<const graph::PlacedModel>> place(Request& request);
  void advance(Request& request, std::size_t partition);
  void finish_partition(Request& request, std::size_t partition, decl::Finish finish);
  void end(Request& request, RequestEvent event);
  void erase(RequestId id);
  Request* find(RequestId id);

  ConductorOptions options_;
  wire::Mesh& mesh_;
  Queue<Inbox> inbox_;
  std::atomic<std::uint64_t> next_id_{1};
  std::atomic<int> num_submitted_{0};  // queued plus live, so that submit() can refuse at once
  std::atomic<bool> draining_{false};
  mutable std::mutex state_mutex_;  // guards ready_, failure_, counters_
  std::condition_variable state_changed_;
  std::set<WorkerId> ready_;
  std::string failure_;
  struct Counters {
    std::int64_t finished = 0, failed = 0, cancelled = 0, running = 0, waiting = 0, tokens = 0;
  } counters_;

  std::deque<Submit> waiting_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::map<std::pair<std::uint32_t, std::vector<WorkerId>>, std::shared_ptr<const graph::PlacedModel>> placements_;
  std::map<std::tuple<std::uint32_t, std::size_t, WorkerId>, int> load_;  // live requests by (model, group, replica)
  std::mt19937_64 random_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mstar::conductor
