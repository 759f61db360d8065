// One process's deployment: models, devices, workers and conductor joined by an in-process mesh.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "mstar/conductor/conductor.h"
#include "mstar/device/device.h"
#include "mstar/device/thread_pool.h"
#include "mstar/graph/compiled.h"
#include "mstar/models/model.h"
#include "mstar/worker/worker.h"

namespace mstar::apps {

// One entry of `models:`.
struct ModelConfig {
  std::string model;  // a directory, a checkpoint file, or the name of a family without weights
  std::string name;   // as served; empty: the directory's name
  std::vector<std::string> aliases;
  Params options;
  struct Group {
    std::vector<std::string> components;
    std::vector<int> ranks;
  };
  std::vector<Group> node_groups;  // empty: host components on the host, all others on rank 0
};

struct RuntimeConfig {
  std::vector<ModelConfig> models;
  int num_threads = 0;  // CPU step threads; 0: by affinity and cgroup quota
  int max_concurrent_requests = 16;
  int max_queued_requests = 256;
  std::size_t memory_bytes = 0;  // 0: the device's
  conductor::Routing routing = conductor::Routing::least_loaded;
};

// Thread: build and destroy from one; frontend() from any. Everything is loaded when build returns.
class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> build(RuntimeConfig config);
  ~Runtime();
  conductor::Conductor& frontend() { return *conductor_; }
  // What each component holds, for the start-up lines.
  std::string memory_report() const;

 private:
  class Mesh;
  struct Served {
    ModelConfig config;
    std::shared_ptr<const weights::Checkpoint> checkpoint;
    std::unique_ptr<const decl::Decl> decl;
    std::unique_ptr<const graph::CompiledModel> compiled;
  };
  explicit Runtime(RuntimeConfig config);
  Status load_models();
  Status start_workers();
  std::string worker_metrics() const;

  RuntimeConfig config_;
  std::vector<Served> models_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<worker::HostPool> host_pool_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<conductor::Conductor> conductor_;
  std::vector<std::unique_ptr<worker::Worker>> workers_;  // [0] runs host components, [1 + rank] the devices
};

// Loads one entry's declaration without weights on any device: `mstar inspect`.
struct OpenedModel {
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::unique_ptr<const decl::Decl> decl;
  const models::ModelFamily* family = nullptr;
};
Result<OpenedModel> open_model(const ModelConfig& config);

}  // namespace mstar::apps
