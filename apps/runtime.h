// One process's deployment: models, devices, workers and conductor joined by an in-process mesh.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "memory_plan.h"
#include "mstar/conductor/conductor.h"
#include "mstar/device/device.h"
#include "mstar/device/thread_pool.h"
#include "mstar/graph/compiled.h"
#include "mstar/models/model.h"
#include "mstar/worker/worker.h"
#include "node_groups.h"

namespace mstar::apps {

// One entry of `models:`.
struct ModelConfig {
  std::string model;  // a directory, a checkpoint file, or the name of a family without weights
  std::string name;   // as served; empty: the directory's name
  std::vector<std::string> aliases;
  Params options;
  std::vector<NodeGroupConfig> node_groups;  // empty: host components on the host, all others on rank 0
};

enum class Isolation : std::uint8_t { thread, process };

struct RuntimeConfig {
  std::vector<ModelConfig> models;
  int num_threads = 0;  // CPU step threads; 0: by affinity and cgroup quota
  int max_concurrent_requests = 16;
  bool max_requests_given = false;  // then the memory plan may not lower it
  int max_queued_requests = 256;
  std::size_t memory_bytes = 0;  // 0: the device's
  int max_step_rows = 0;         // of one step; 0: max_concurrent_requests
  int max_step_tokens = 512;
  conductor::Routing routing = conductor::Routing::least_loaded;
  Isolation isolation = Isolation::thread;
};

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
Result<OpenedModel> open_model(const ModelConfig& config);

resource::PoolLimits limits_of(const RuntimeConfig& config);
// --memory, else what the device has.
std::size_t available_bytes(const RuntimeConfig& config);
Result<MemoryPlan> memory_of(const std::vector<const OpenedModel*>& models, const RuntimeConfig& config,
                             std::size_t budget_bytes);
// The same for the whole deployment. When it does not fit and no cap was given, max_concurrent_requests is lowered
// until it does; exhausted, with the table, when that is not enough.
// `reserved_bytes` are kept free for what the plan cannot know.
Result<MemoryPlan> fit_memory(const std::vector<const OpenedModel*>& models, std::size_t reserved_bytes,
                              RuntimeConfig& config);

// Thread: build and destroy from one; frontend() from any. Everything is loaded when build returns.
class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> build(RuntimeConfig config);
  ~Runtime();
  conductor::Conductor& frontend() { return *conductor_; }
  // As the memory plan left it.
  int max_concurrent_requests() const { return config_.max_concurrent_requests; }
  // What each rank holds: planned, with the step arenas that the built components need.
  const MemoryPlan& memory() const { return memory_; }
  std::string device_description() const { return device_->description(); }

 private:
  class Mesh;
  struct Served {
    OpenedModel opened;
    std::unique_ptr<const graph::CompiledModel> compiled;
  };
  explicit Runtime(RuntimeConfig config);
  Status load_models();
  Status fit_and_start();
  Status start_workers();
  void stop_workers();
  int num_ranks() const;
  conductor::ServedDeployment deploy(const Served& served, std::vector<worker::WorkerOptions>& workers) const;
  std::size_t add_arenas();
  std::string worker_metrics() const;

  RuntimeConfig config_;
  std::vector<Served> models_;
  MemoryPlan memory_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<worker::HostPool> host_pool_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<conductor::Conductor> conductor_;
  std::vector<std::unique_ptr<worker::Worker>> workers_;  // [0] runs host components, [1 + rank] the devices
};

}  // namespace mstar::apps
