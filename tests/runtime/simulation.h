// A whole deployment on one thread: conductor, workers, ranks in step and host pool take turns in an order that a seed
// picks, and messages are delivered late, in order per pair of sender and receiver only. For tests.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mstar/conductor/conductor.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/graph/compiled.h"
#include "mstar/worker/step_follower.h"
#include "mstar/worker/worker.h"

namespace mstar::sim {

// Everything that a request's sink was told.
struct Answer final : EventSink {
  std::string text;
  std::vector<std::string> pieces;
  int num_terminal = 0;
  int num_chunks_after_end = 0;
  std::optional<Finished> finished;
  std::optional<Error> error;
  void on_event(RequestEvent event) override;
};

// One served model: where its device components run. A replica is a device worker, 0, 1, ...
struct ModelSpec {
  decl::Decl decl;
  std::map<std::string, std::vector<std::uint32_t>> replicas;  // by component; those not named run on device worker 0
  // By component and walk: a component that is named here is named for each of its walks.
  std::map<std::pair<std::string, std::string>, std::vector<std::uint32_t>> by_walk = {};
};

// Whether workers get a device that defers its work and so run ahead; MSTAR_SIM_DEVICE=deferred says so for a whole run
// of the tests, which must answer the same either way.
bool default_asynchronous();

// How many ranks work in step as each device worker; MSTAR_SIM_IN_STEP says so for a whole run of the tests.
int default_in_step();

struct Options {
  std::uint64_t seed = 1;
  std::uint32_t num_device_workers = 1;
  int max_concurrent_requests = 16;
  int max_queued_requests = 64;
  bool ready = true;  // workers have said so
  bool asynchronous = default_asynchronous();
  bool run_ahead = true;
  int in_step = default_in_step();
};

class Simulation {
 public:
  Simulation(Options options, std::vector<ModelSpec> models);
  ~Simulation();

  struct Submitted {
    RequestId id;
    std::shared_ptr<Answer> answer;
  };
  // Fails the test when it is refused.
  Submitted submit(decl::ApiRequest request);
  Result<RequestId> try_submit(decl::ApiRequest request, std::shared_ptr<Answer> answer);

  // One random action; false when nothing is left to do anywhere.
  bool step();
  // Steps until nothing is left to do; fails the test when that takes more than `most`.
  void run(std::int64_t most = 2000000);
  // Steps while `wanted` is false; false when nothing is left to do.
  template <class Wanted>
  bool run_until(Wanted&& wanted) {
    while (!wanted())
      if (!step()) return wanted();
    return true;
  }
  // What must be true whenever nothing is left to do: pools, queues, loads and held signals are empty.
  void expect_empty();
  // Drops a worker's state and what is on its way from and to it, as when its process is killed; the conductor is told.
  void kill_worker(WorkerId worker);
  void restart_worker(WorkerId worker);

  conductor::Conductor& conductor() { return *conductor_; }
  worker::Worker& worker(std::uint32_t index) { return *workers_[index]; }  // 0: the host's
  // Counters of one component, over all workers.
  wire::WorkerStats::Component total(const std::string& component) const;
  std::mt19937_64& random() { return random_; }
  std::size_t num_host_jobs() const { return host_.jobs.size(); }
  std::size_t num_messages() const;

 private:
  static constexpr std::uint32_t kConductor = ~0u;
  using Message = std::variant<wire::ToWorker, wire::ToConductor>;
  struct Port final : wire::Mesh {
    Simulation* owner = nullptr;
    std::uint32_t self = kConductor;
    bool to_worker(WorkerId worker, wire::ToWorker message) override;
    void to_conductor(wire::ToConductor message) override;
  };
  struct Host final : worker::HostExecutor {
    std::vector<std::function<void()>> jobs;
    void submit(std::function<void()> job) override { jobs.push_back(std::move(job)); }
  };
  bool deliver_one(std::size_t which);
  std::size_t num_waiting_links() const;
  bool run_one_job();
  std::unique_ptr<worker::Worker> make_worker(std::uint32_t index);
  void make_followers(std::uint32_t index);
  bool replay_one(std::size_t which);

  Options options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<decl::Decl>> decls_;
  std::vector<std::unique_ptr<graph::CompiledModel>> compiled_;
  std::unique_ptr<Device> device_;
  Host host_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<Message>> links_;  // (from, to)
  Port conductor_port_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<worker::WorkerOptions> worker_options_;
  std::unique_ptr<conductor::Conductor> conductor_;
  std::vector<std::unique_ptr<worker::Worker>> workers_;  // null: killed
  struct Follower {
    std::uint32_t leader = 0;
    std::unique_ptr<Device> device;
    std::unique_ptr<worker::StepFollower> rank;
  };
  std::vector<std::unique_ptr<Follower>> followers_;
};

}  // namespace mstar::sim
