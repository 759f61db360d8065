// The conductor: each request's life, from admission to its one terminal event. Plain logic; sees no device.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mstar/base/clock.h"
#include "mstar/base/queue.h"
#include "mstar/conductor/client_inputs.h"
#include "mstar/conductor/frontend.h"
#include "mstar/conductor/prefix_routes.h"
#include "mstar/conductor/replica_loads.h"
#include "mstar/conductor/request_table.h"
#include "mstar/decl/decl.h"
#include "mstar/graph/partition_progress.h"
#include "mstar/wire/messages.h"

namespace mstar::conductor {

// Components that are placed together: `replicas` are the workers that each run all of them.
struct NodeGroup {
  std::string name;
  std::vector<decl::ComponentRef> components;
  std::vector<decl::WalkRef> walks = {};  // in which the group runs them; empty: in all
  std::vector<WorkerId> replicas;
};

// One served model. Borrowed parts outlive the conductor.
struct ServedDeployment {
  std::string name;
  std::vector<std::string> aliases;
  const graph::CompiledModel* compiled = nullptr;
  std::vector<NodeGroup> groups;  // every component is in exactly one for each walk that runs it
};

// Of replicas the one with the fewest live requests; any; or the one that had the request's beginning last, where that
// has not too many.
enum class Routing : std::uint8_t { least_loaded, random, prefix };

// A request that warms a worker which has come back: it runs as often as it ran at the start on that replica.
struct WarmupCall {
  std::string name;  // "warmup-0"; its copies are "warmup-0.<copy>"
  decl::ApiRequest request;
  std::uint32_t num_copies = 1;  // of the start: copy i ran on replica i of each node group, counted round
};

struct ConductorOptions {
  std::vector<ServedDeployment> models;
  std::vector<WorkerId> workers;
  std::vector<WorkerId> ranks = {};  // of them those that may be drained, by rank
  std::vector<int> leaders = {};  // by rank: whom it follows, where ranks work in step; itself. Empty: all themselves
  int max_concurrent_requests = 16;
  int max_queued_requests = 256;
  Routing routing = Routing::least_loaded;
  int prefix_excess = 4;   // a request follows its prefix to a replica with so many more live requests than the least
  std::uint64_t seed = 0;  // of ties and random routing
  std::function<std::string()> worker_metrics;  // Prometheus text of the workers; may be empty
  std::function<std::string()> profile_json;    // of the workers' steps; empty where no profile is taken
  std::chrono::microseconds stays_awake = {};   // after the last request's end: its client may send the next at once
  // Of a worker that has come back: after so many failures in a row it stays out of service until an operator resumes
  // it; the delay before the second one, doubled each time.
  int most_warmup_tries = 5;
  std::chrono::microseconds warmup_delay = std::chrono::seconds(1);
  const Clock* clock = nullptr;  // outlives the conductor; null: the steady clock
};

// Owner thread: its own, started by start(), or else the one that calls poll(); for all private state below the marker.
// Frontend calls: any thread.
class Conductor final : public Frontend {
 public:
  Conductor(ConductorOptions options, wire::Mesh& mesh);
  ~Conductor() override;
  // The loop on a thread of its own.
  void start();
  // One turn of the loop: takes the messages that have arrived, admits what fits. False when there was nothing to do.
  bool poll();
  // Ends the loop; requests that are left get Failed{unavailable}. Idempotent; workers may still send until
  // destruction.
  void stop();
  void receive(wire::ToConductor message) { inbox_.push(Inbox(std::move(message))); }
  void receive_all(std::vector<wire::ToConductor>& messages) { inbox_.push_all(messages); }

  // unavailable also while a part of the model has no worker. There are max_concurrent_requests + max_queued_requests
  // places.
  Result<std::vector<RequestId>> submit_call(CallRequests call) override;
  Result<decl::TextCodec> text_codec(std::string_view model) const override;
  // What its model's surface makes of it; null: it is one request. Of a request that cannot be served too.
  Result<std::unique_ptr<decl::Splitter>> split(const decl::ApiRequest& request) const;
  void abort(RequestId request) override { inbox_.push(Inbox(Abort{request})); }
  Status push(RequestId request, std::string_view port, const HostValue& value, bool done) override;
  std::vector<ServedModel> models() const override;
  // Ready: every worker was once, and each part of each model has one that is.
  RuntimeState state() const override;
  std::string metrics_text() const override;
  Result<std::string> profile_json() const override;
  std::vector<WorkerInfo> workers() const override;
  Result<WorkerInfo> order_worker(int rank, WorkerOrder order) override;

  // From now on a worker that comes back (its process was started again, or it had let go of what it had loaded) gets
  // no client's request before it has answered these on the real path, request after request, each one's copies at
  // once; a worker that no request is for is in service at once. Read here, once: the errors of their intake. Workers
  // that came back before are warmed now. unavailable when the conductor has stopped.
  Status set_warmup(const std::vector<WarmupCall>& calls);
  // New requests are refused with `unavailable`; true when none was left within the time.
  bool drain(std::chrono::milliseconds timeout);
  // Waits until every worker is ready or one has failed.
  Status wait_ready(std::chrono::milliseconds timeout);

  // For tests, while nothing runs: live requests by (model, group, replica), without zeros.
  std::map<std::tuple<std::uint32_t, std::size_t, WorkerId>, int> load() const;

 private:
  struct Submit {  // what each value needs comes first: few lines of the cache
    RequestId id;
    std::uint32_t model = 0;
    const decl::Surface* surface = nullptr;
    std::shared_ptr<const decl::RequestParams> params;
    std::shared_ptr<EventSink> sink;  // owners: the server's connection and this request
    std::map<decl::PortRef, std::vector<HostValue>> inputs;
    std::int64_t num_prompt_tokens = 0;
    std::optional<std::uint32_t> replica = {};  // wanted of each node group
    std::shared_ptr<ClientInputs> client;       // owners: this and open_; null when the model takes none
    std::vector<ClientItems> sent = {};         // before the request was admitted
    WorkerId warms = {};                        // that this request warms up; invalid: it is a client's
  };
  struct Push {
    RequestId id;
    ClientItems items;
  };
  struct Abort {
    RequestId id;
  };
  struct Ordered {  // an operator's order stands in standings_
    WorkerId worker;
    bool loads = false;
  };
  struct Warmup {  // one request of set_warmup()
    std::string name;
    std::uint32_t num_copies = 1;
    Submit submit;
  };
  struct SetWarmup {
    std::vector<Warmup> requests;
  };
  struct Stop {};
  using Inbox = std::variant<wire::ToConductor, Submit, Push, Abort, Ordered, SetWarmup, Stop>;

  struct Partition {
    std::unique_ptr<decl::Plan> plan;
    std::unique_ptr<graph::PartitionProgress> progress;
    bool done = false;
    decl::Finish finish = decl::Finish::stop;
  };
  struct Request {
    bool ended = false;                      // the sink has its terminal event
    std::uint32_t modalities = ~0u;          // that the client wants, a bit for each
    std::unique_ptr<decl::Emitter> emitter;  // null where the surface has none
    std::shared_ptr<const graph::PlacedModel> placed;
    Submit submit;
    std::vector<std::size_t> replicas;  // chosen, by group
    std::vector<Partition> partitions;
    std::map<decl::PortRef, std::vector<HostValue>> kept;
    // That know of it, and that have not confirmed the removal: few, each once.
    std::vector<WorkerId> workers, removing;
    Params metadata;
    std::map<WorkerId, std::int64_t> cached_tokens;  // where one counts them
    std::map<decl::ResourceRef, WorkerId> state_at;  // of what moves: who has it, once a walk has used it
  };

  // conductor_frontend.cc: any thread
  // Places of a call that is being read; given back unless keep() is called.
  class Places;
  Result<std::uint32_t> find_model(std::string_view name) const;      // index into options_.models
  Result<Submit> find_served(const decl::ApiRequest& request) const;  // its model and surface
  Status reserve(int num_choices, const char* field);
  Result<Submit> make_submit(const decl::ApiRequest& request) const;
  static Submit choice_of(const Submit& first, int choice);
  // Empty when each part of the model has a worker that takes requests. Caller holds state_mutex_.
  std::string why_not_served(std::uint32_t model) const;
  std::string why_not_ready() const;
  void close_inputs(RequestId request);     // of a request that has ended
  void forget_submitted(int num_requests);  // that did not get in

  // conductor_workers.cc: any thread, which holds state_mutex_
  bool takes_requests(WorkerId worker) const;
  void note_takes(WorkerId worker);  // after each change of what takes_requests reads
  bool takes_warmups(WorkerId worker) const;
  std::string why_it_takes_none(WorkerId worker) const;
  int leader_of(int rank) const {
    return options_.leaders.empty() ? rank : options_.leaders[static_cast<std::size_t>(rank)];
  }
  Status check_rank(int rank) const;
  WorkerInfo info_of(int rank) const;

  // ---- owner thread ----
  // conductor.cc: life and admission
  void run();
  void on_inbox(Inbox& message);
  // Runs `body`; what it throws ends the request.
  template <class Body>
  void guarded(RequestId request, Body&& body);
  void on(Submit message);
  void on(Push message);
  void on(const Abort& message);
  void on(const Stop&) { stopping_ = true; }
  void on(wire::ToConductor&& message);
  void on(const wire::WorkerReady& message);
  void on(const wire::WorkerFailed& message);
  void on(wire::RequestFailed message);
  void on(const wire::Removed& message);
  void admit();
  void begin(Submit submit);
  void add_to_workers(Request& request);
  Result<std::shared_ptr<const graph::PlacedModel>> place(Request& request);
  // conductor_routing.cc
  struct Prompt {  // of a group with a prefix cache
    decl::PortRef port;
    int block_tokens = 0;
    PrefixRoutes routes;
  };
  void find_prompts();
  void find_replicas();
  static PrefixRoutes::Chain chain_of(const Submit& submit, const Prompt& prompt);
  void forget_routes(WorkerId worker);
  // Number of the replica, which has the request from then on.
  Result<std::size_t> choose_replica(const Submit& submit, std::size_t group);
  std::size_t pick_replica(const Submit& submit, std::size_t group, const PrefixRoutes* routes,
                           const PrefixRoutes::Chain& chain);
  void release_replicas(const Request& request);
  void end(Request& request, RequestEvent event);
  void end_after(RequestId request, const std::exception& thrown);  // where it has not ended
  void fail_waiting(Submit& submit, Error error);
  void erase_if_removed(RequestId id);
  void note_numbers();
  // conductor_workers.cc: who is in service
  void on(const Ordered& message);
  void count_request(WorkerId worker, int by);  // that the worker has, or has no more
  void unload_if_left(WorkerId worker);
  Request* find(RequestId id) const { return requests_.find(id); }

  // conductor_warmup.cc: workers that came back
  struct Warming {                       // of one of them
    int num_failed = 0;                  // tries in a row
    std::int64_t due_us = 0;             // when the next try may begin
    std::optional<std::size_t> at = {};  // the request of the try that runs
    std::int64_t begun_us = 0;
    int num_running = 0;                // copies
    std::optional<Error> failure = {};  // the first one of the try
    bool disturbed = false;             // by the failure of another worker
  };
  class WarmupSink;
  void on(SetWarmup message);
  std::vector<std::uint32_t> copies_on(const Warmup& warmup, WorkerId worker) const;
  bool is_warmed_by(WorkerId worker) const;  // any of the requests
  void note_came_back(WorkerId worker);
  void note_warmup_disturbed(const Request& request, WorkerId by);
  std::string why_no_warmup(const Warmup& warmup, WorkerId worker) const;
  std::optional<std::int64_t> warmup_due_us() const;
  bool advance_warmups();
  bool advance_warmup(WorkerId worker, Warming& warming);
  bool begin_warmup(WorkerId worker, Warming& warming);
  void end_warmup_try(WorkerId worker, Warming& warming);
  void note_warm(WorkerId worker, const Warming& warming);
  Result<WorkerId> pick_for_warmup(const Submit& submit, std::size_t group) const;

  // conductor_walks.cc: from reports to the next walk
  void on(wire::FragmentReport&& message);
  void on(wire::ClientValues&& message);
  void on_values(const wire::ClientValues::Part& part, WorkerId worker, std::span<HostValue> values);
  void send_items(const Request& request, const ClientItems& items);
  void note_consumed(const Request& request) const;
  void advance(Request& request, std::size_t partition);
  // False: that ended the request, which may be gone.
  bool move_state(Request& request, decl::PartitionRef partition, decl::WalkRef walk);
  std::map<decl::PortRef, decl::StreamCounts> stream_counts(const Request& request, std::size_t partition) const;
  void finish_partition(Request& request, std::size_t partition, decl::Finish finish);
  void finish_request(Request& request, decl::Finish finish);
  void emit(Request& request, decl::PortRef port, std::span<const HostValue> values);
  void give(Request& request, decl::Chunk&& chunk);

  ConductorOptions options_;
  wire::Mesh& mesh_;
  const std::int64_t created_s_;  // when it was built, since the epoch
  Queue<Inbox> inbox_;
  std::vector<Inbox> messages_;  // of one turn, of the owner thread
  std::mutex submit_mutex_;      // ids are in the order of the inbox
  std::uint64_t next_id_ = 1;
  std::atomic<int> num_submitted_{0};  // queued plus live, so that submit() can refuse at once
  std::atomic<bool> draining_{false};
  std::mutex open_mutex_;                                              // guards open_
  std::unordered_map<RequestId, std::shared_ptr<ClientInputs>> open_;  // of requests that have not ended
  mutable std::mutex state_mutex_;                                     // guards the next eight
  std::condition_variable state_changed_;
  std::set<WorkerId> ready_;
  std::map<WorkerId, std::string> failures_;  // of workers that are gone, until they are ready again
  bool was_ready_ = false;                    // every worker, at one time
  struct Standing {                           // of a worker
    bool drains = false;                      // takes no requests; so was it ordered
    bool removes = false;                     // drains, and then lets go of what it has loaded
    bool is_removed = false;                  // was told to
    bool was_ready = false;                   // ever
    bool is_cold = false;                     // came back and has not answered its warm-up requests: takes no others
    bool stays_cold = false;                  // they failed too often
    std::string cold_reason;                  // why the last try failed, or what the next one waits for
    int num_requests = 0;
  };
  std::unordered_map<WorkerId, Standing> standings_;
  std::vector<std::vector<ReplicaLoads>> loads_;  // live requests, by model and group
  std::unordered_map<WorkerId, std::vector<std::pair<ReplicaLoads*, std::size_t>>> replicas_of_;  // as which, in loads_
  struct Counters {
    std::int64_t finished = 0, failed = 0, cancelled = 0, running = 0, waiting = 0, tokens = 0, by_prefix = 0;
  } counters_;

  std::deque<Submit> waiting_;
  RequestTable<Request> requests_;
  std::map<std::pair<std::uint32_t, std::vector<WorkerId>>, std::shared_ptr<const graph::PlacedModel>> placements_;
  std::map<std::pair<std::uint32_t, std::size_t>, Prompt> prompts_;  // of (model, group), with Routing::prefix
  std::vector<Warmup> warmup_;
  std::set<WorkerId> came_back_;          // and have not been warmed since, nor need to be
  std::map<WorkerId, Warming> warmings_;  // of those that do
  std::mt19937_64 random_;
  const SteadyClock steady_clock_;
  const Clock& clock_;
  bool stopping_ = false;
  bool stopped_ = false;
  std::chrono::steady_clock::time_point awake_until_ = {};
  std::thread thread_;
};

template <class Body>
void Conductor::guarded(RequestId request, Body&& body) {
  try {
    body();
  } catch (const std::exception& thrown) {
    end_after(request, thrown);
  }
}

}  // namespace mstar::conductor
