// Runs one component: declare -> admit -> gather -> plan -> forward -> finish, for batches of rows in any state.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mstar/engine/buffers.h"
#include "mstar/engine/component_body.h"
#include "mstar/engine/labels.h"

namespace mstar::engine {

// The resources of one worker, by reference of the Decl. Components that name the same resource share it.
class ResourceSet {
 public:
  // Builds every resource that the given components use. exhausted with the shortfall when the device has no room.
  static Result<ResourceSet> build(const decl::Decl& decl, std::span<const decl::ComponentRef> components,
                                   const resource::PoolLimits& limits, Device& device);
  resource::Resource* at(decl::ResourceRef ref) const;
  // All or nothing.
  Status add_request(RequestId request, const decl::RequestParams& params);
  void remove_request(RequestId request);
  std::vector<resource::Usage> usage() const;
  // The first of the kNumSlots plan slots of one more component; steps of components that share a resource interleave.
  int claim_plan_slots();

 private:
  int num_plan_slots_ = 0;
  int claimed_plan_slots_ = 0;
  std::vector<std::unique_ptr<resource::Resource>> by_ref_;  // null where this worker has none
};

// What became of one row.
struct RowResult {
  RequestId request;
  std::optional<Error> error;
  std::vector<Values> outputs;             // per output port of the Run
  std::vector<std::string> stopped_loops;  // component signals
  std::uint32_t tag = 0;                   // RowInputs::tag
};

struct StepCounters {
  std::int64_t num_steps = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_replays = 0;  // captured graphs
  std::int64_t num_eager = 0;
  std::int64_t num_allocations = 0;  // fresh output buffers
};

class Step;  // a batch between prepare and finish
struct StepDeleter {
  void operator()(Step* step) const;
};
using StepPtr = std::unique_ptr<Step, StepDeleter>;

class Engine {
 public:
  struct Options {
    resource::PoolLimits limits;
    std::shared_ptr<BufferPool> buffers;
    ThreadPool* pool = nullptr;
  };
  static Result<std::unique_ptr<Engine>> create(const decl::Decl& decl, decl::ComponentRef component, Options options,
                                                ResourceSet& resources, weights::WeightMap& weights, Device& device);
  ~Engine();

  // Rows in the order of the input. `waiting` could not be admitted now and keep their inputs; `failed` are over.
  struct Prepared {
    StepPtr step;  // null when no row was admitted
    std::vector<RowInputs> waiting;
    std::vector<RowResult> failed;
  };
  Prepared prepare(std::vector<RowInputs> rows);
  // Runs the next slice; true when the forward is launched whole. After an Error the step must still be finished.
  Result<bool> advance(Step& step);
  // Waits for the device, commits, and gives each row its outputs. On a failed forward every row carries the error.
  std::vector<RowResult> finish(StepPtr step);

  void forget(RequestId request) { body_->forget(request); }
  const decl::DeviceComponent& spec() const { return spec_; }
  decl::ComponentRef component() const { return component_; }
  const StepCounters& counters() const { return counters_; }
  std::size_t weight_bytes() const { return body_->weight_bytes(); }
  std::size_t arena_bytes() const { return arena_bytes_; }

 private:
  Engine(const decl::Decl& decl, decl::ComponentRef component, Options options, ResourceSet& resources, Device& device);
  Result<RowDemand> declare(const RowInputs& row);
  Result<resource::Admit> admit(const RowInputs& row, const resource::StepRow& claim);
  void fork_after(Step& step);
  Status gather(Step& step);
  Status allocate_outputs(Step& step);

  const decl::Decl& decl_;
  const decl::DeviceComponent& spec_;
  decl::ComponentRef component_;
  Options options_;
  ResourceSet& resources_;
  Device& device_;
  std::unique_ptr<ComponentBody> body_;
  Labels labels_;
  std::vector<SlotSpec> input_slots_, output_slots_;
  void* arena_memory_ = nullptr;
  std::size_t arena_bytes_ = 0;
  int first_plan_slot_ = 0;
  int next_plan_slot_ = 0;
  StepCounters counters_;
};

}  // namespace mstar::engine
