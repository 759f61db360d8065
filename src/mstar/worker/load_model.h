// A rank's part of one model: its pools and its engines, with their weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mstar/base/step_profile.h"
#include "mstar/engine/engine.h"
#include "mstar/graph/compiled.h"
#include "mstar/weights/checkpoint.h"
#include "mstar/wire/messages.h"

namespace mstar::worker {

// One model as a worker sees it. Borrowed parts outlive the worker.
struct WorkerModel {
  std::string name;  // as served, for statistics
  const graph::CompiledModel* compiled = nullptr;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // null for models without weights
  std::vector<decl::ComponentRef> components;             // device components that this worker runs
  resource::PoolLimits limits;
  std::vector<decl::ComponentRef> in_step = {};  // of them, those that this rank's group runs (StepGroup)
};

// The engines of all models of a rank share these.
struct LoadContext {
  Device& device;
  std::shared_ptr<engine::BufferPool> buffers;
  ThreadPool* pool = nullptr;
  StepProfile* profile = nullptr;
  MeshEnds mesh = {};  // of the models' components in step; alone: nothing is computed together
};

// Resources and engines of the model's components, in their order; `resources` is empty before, and must stand still
// after. Engines are not captured yet. Slow: it reads weights. bad_model, exhausted.
Status load_model(const WorkerModel& model, const LoadContext& context, engine::ResourceSet& resources,
                  std::vector<std::unique_ptr<engine::Engine>>& engines);

// What statistics say of these.
void add_pools(wire::WorkerStats& stats, const std::string& model, const engine::ResourceSet& resources);
void add_component(wire::WorkerStats& stats, const std::string& model, const engine::Engine& engine);

}  // namespace mstar::worker
