// One process's deployment: models, devices, workers and conductor joined by an in-process mesh.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "memory_plan.h"
#include "mstar/base/step_profile.h"
#include "mstar/conductor/conductor.h"
#include "mstar/conductor/split_frontend.h"
#include "mstar/device/device.h"
#include "mstar/device/rank_mesh.h"
#include "mstar/device/thread_pool.h"
#include "mstar/graph/compiled.h"
#include "mstar/models/model.h"
#include "mstar/worker/worker.h"
#include "node_groups.h"
#include "step_groups.h"
#include "worker_process.h"

namespace mstar::apps {

// Where device components run. automatic: on CUDA where there is a device and all models can, else on the CPU.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

// One entry of `models:`.
struct ModelConfig {
  std::string model;  // a directory, a checkpoint file, or the name of a family without weights
  std::string name;   // as served; empty: the directory's name
  std::vector<std::string> aliases;
  Params options;
  std::vector<NodeGroupConfig> node_groups;  // empty: host components on the host, all others on rank 0
};

// Device workers are threads of this process, or each a process of its own; host components run here either way.
enum class Isolation : std::uint8_t { thread, process };

// What is kept of where the workers' time goes.
struct ProfileConfig {
  bool phases = false;     // a table at the end
  std::string trace_file;  // a timeline of the last steps; empty: none
  bool is_on() const { return phases || !trace_file.empty(); }
};

// Where one rank works.
struct RankDevice {
  Backend backend = Backend::cpu;
  int index = 0;  // of CUDA devices
};

struct RuntimeConfig {
  std::vector<ModelConfig> models;
  DeviceChoice device = DeviceChoice::automatic;
  std::map<int, RankDevice> rank_devices;  // rank r that is not named: the r-th CUDA device
  std::vector<std::string>
      wanted_models;    // names that must be served, for warm-up requests ask for them; "": the first
  int num_threads = 0;  // CPU step threads; 0: by affinity and cgroup quota
  // How long threads stay awake where the next request is near; none: 2 ms on machines of eight cores and more.
  std::optional<int> stay_awake_us;
  int max_concurrent_requests = 16;
  bool max_requests_given = false;  // then the memory plan may not lower it
  int max_queued_requests = 256;
  std::size_t memory_bytes = 0;  // 0: the device's
  int max_step_rows = 0;         // of one step; 0: max_concurrent_requests
  int max_step_tokens = 0;       // 0: 512 on a CPU, engine::kLongStep on a CUDA device
  conductor::Routing routing = conductor::Routing::least_loaded;
  int prefix_excess = 4;  // with Routing::prefix
  Isolation isolation = Isolation::thread;
  std::chrono::milliseconds hang_timeout{
      60000};  // `isolation: process`: a worker that stands still is killed; 0: never
  // `isolation: process`: a worker that has loaded nothing more for this long is killed; 0: never.
  std::chrono::milliseconds load_timeout{120000};
  std::chrono::milliseconds group_delay{500};     // before ranks in step whose group has ended begin again; then longer
  std::string worker_program = "/proc/self/exe";  // the mstar binary, for `isolation: process`
  ProfileConfig profile;                          // not with `isolation: process`
};

// How long threads look for the next request before they sleep.
std::chrono::microseconds stays_awake(const RuntimeConfig& config);

// The name that an entry is served by when it names none: its directory's.
std::string default_name(const std::string& model);

// A model's declaration, without weights on any device.
struct OpenedModel {
  ModelConfig config;  // with its name filled in
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::unique_ptr<const decl::Decl> decl;
  const models::ModelFamily* family = nullptr;
  std::vector<NodeGroup> groups;
};
Result<OpenedModel> open_model(const ModelConfig& config, Backend backend = Backend::cpu);

// All of the configuration's, for the device that it chooses.
struct OpenedModels {
  Backend backend = Backend::cpu;
  std::vector<OpenedModel> models;
};
Result<OpenedModels> open_models(const RuntimeConfig& config);

// The highest rank of any node group, and one.
int num_ranks(const std::vector<OpenedModel>& models);
// The CUDA device of a rank.
int cuda_index(const RuntimeConfig& config, int rank);
// unavailable.
Result<std::unique_ptr<Device>> make_device(Backend backend, int index);

resource::PoolLimits limits_of(const RuntimeConfig& config);
// Of each device: --memory, else what the smallest one has. unavailable.
Result<std::size_t> available_bytes(const RuntimeConfig& config, Backend backend, int num_ranks);
Result<MemoryPlan> memory_of(const std::vector<const OpenedModel*>& models, const RuntimeConfig& config,
                             Backend backend, std::size_t budget_bytes);
// The same for the whole deployment. When it does not fit and no cap was given, max_concurrent_requests is lowered
// until it does; exhausted, with the table, when that is not enough.
// `reserved` is kept free for what the plan cannot know, and stands in the error's table only.
Result<MemoryPlan> fit_memory(const std::vector<const OpenedModel*>& models, Backend backend,
                              const std::vector<MemoryLine>& reserved, std::size_t budget_bytes, RuntimeConfig& config);

// Thread: build and destroy from one; frontend() from any. Everything is loaded when build returns.
class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> build(RuntimeConfig config);
  ~Runtime();
  conductor::Conductor& conductor() { return *conductor_; }
  // For clients: requests that a model answers in parts are split here.
  conductor::SplitFrontend& frontend() { return *frontend_; }
  // As the memory plan left it.
  int max_concurrent_requests() const { return config_.max_concurrent_requests; }
  // By model, as named: replicas of each of its node groups with ranks.
  std::map<std::string, std::vector<std::size_t>> num_replicas() const;
  // What each rank holds: planned, with the step arenas that the built components need.
  const MemoryPlan& memory() const { return memory_; }
  std::string device_description() const;
  // By rank; none when no profile is taken. They stand as long as the runtime does.
  std::vector<const StepProfile*> profiles() const;
  const ProfileConfig& profile_config() const { return config_.profile; }
  // Of the worker of a device rank under `isolation: process`; nothing when it is not running.
  std::optional<pid_t> worker_pid(int rank) const;
  // For tests: of ranks in step that are threads, by the rank that leads; else null.
  std::shared_ptr<worker::StepGroup> step_group(int leader) const;

 private:
  class Mesh;
  struct Served {
    OpenedModel opened;
    std::unique_ptr<const graph::CompiledModel> compiled;
  };
  explicit Runtime(RuntimeConfig config);
  Status load_models();
  Status make_devices();
  Status fit_and_start();
  Status start_workers();
  // Of a group of ranks in step: what is cut how, and whether there is something that the ranks compute together.
  struct StepRanks {
    std::vector<int> ranks;  // the first leads
    MeshSize mesh;
    bool together = false;
  };
  std::vector<StepRanks> ranks_in_step() const;
  Result<RankMesh> make_mesh(const StepRanks& of) const;
  Status make_step_groups();
  void add_follower(const worker::WorkerOptions& options, int rank);
  Status start_in_threads(std::vector<worker::WorkerOptions> workers);
  Status start_in_processes(std::vector<worker::WorkerOptions> workers);
  wire::WorkerSetup setup_of(const worker::WorkerOptions& worker, std::size_t num_processes) const;
  std::set<std::pair<WorkerId, WorkerId>> links() const;
  void add_local(worker::WorkerOptions options);
  void stop_workers();
  std::size_t num_workers() const { return static_cast<std::size_t>(num_ranks()) + 1; }
  wire::WorkerStats worker_stats(std::size_t worker) const;
  int num_ranks() const { return num_ranks_; }
  conductor::ServedDeployment deploy(const Served& served, std::vector<worker::WorkerOptions>& workers) const;
  std::vector<MemoryLine> arena_lines() const;
  std::string worker_metrics() const;

  RuntimeConfig config_;
  std::vector<Served> models_;
  MemoryPlan memory_;
  Backend backend_ = Backend::cpu;
  int num_ranks_ = 1;
  std::vector<std::unique_ptr<Device>> devices_;        // by rank; one on the CPU, none where each has its process
  std::vector<std::unique_ptr<StepProfile>> profiles_;  // by rank
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<worker::HostPool> host_pool_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<conductor::Conductor> conductor_;
  std::unique_ptr<conductor::SplitFrontend> frontend_;
  // Worker 0 runs host components, worker 1 + rank a device; those of this process first. Null: a rank that follows.
  std::vector<std::unique_ptr<worker::Worker>> workers_;
  std::unique_ptr<StepGroups> groups_;          // of ranks that are threads
  std::unique_ptr<WorkerProcesses> processes_;  // null: all are threads
};

}  // namespace mstar::apps
