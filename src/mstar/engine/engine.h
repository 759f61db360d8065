// Runs one component: declare -> admit -> gather -> plan -> forward -> finish, for batches of rows in any state.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mstar/base/step_profile.h"
#include "mstar/engine/buffers.h"
#include "mstar/engine/component_body.h"
#include "mstar/engine/labels.h"
#include "mstar/engine/lease.h"
#include "mstar/engine/regions.h"
#include "mstar/engine/slot_memory.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/state_slots.h"

namespace mstar::engine {

// The resources of one worker, by reference of the Decl. Components that name the same resource share it.
class ResourceSet {
 public:
  // Builds every resource that the given components use, each cut as they are on such a mesh of ranks
  // (decl::head_shards). exhausted with the shortfall when the device has no room.
  static Result<ResourceSet> build(const decl::Decl& decl, std::span<const decl::ComponentRef> components,
                                   const resource::PoolLimits& limits, Device& device, MeshSize mesh = {});
  resource::Resource* at(decl::ResourceRef ref) const;
  // All or nothing.
  Status add_request(RequestId request, const decl::RequestParams& params);
  void remove_request(RequestId request);
  std::vector<resource::Usage> usage() const;
  // Prompt tokens of the request that were found in a cache; -1: there is none.
  std::int64_t cached_tokens(RequestId request) const;
  // Of these resources (Resource::digest).
  std::uint64_t digest(std::span<const decl::ResourceRef> refs) const;
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
  bool partial = false;  // the row's sequence goes on: it comes again, with this progress, and has no outputs yet
  Progress progress;
};

struct StepCounters {
  std::int64_t num_steps = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_replays = 0;         // captured graphs
  std::int64_t num_piecewise = 0;       // not captured whole, but with graphs of regions
  std::int64_t num_region_replays = 0;  // these
  std::int64_t num_eager = 0;           // no graph at all
  std::int64_t num_allocations = 0;     // of device or pinned memory, by steps
  std::int64_t num_padding_rows = 0;
  std::int64_t num_ahead_rows = 0;    // launched before they were certain
  std::int64_t num_dropped_rows = 0;  // launched, and then not wanted
  std::int64_t num_host_syncs = 0;    // waits for the device
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
    // Shared by the engines of one device, whose steps follow each other on one stream; null: the engine has its own. A
    // shared one must be sealed before the first step.
    std::shared_ptr<ActivationArena> arena = nullptr;
    StepProfile* profile = nullptr;  // of the step loop that calls this engine
    // No graph is recorded once the graphs have so many nodes together: each takes time at the start and memory of the
    // driver's.
    std::size_t most_graph_nodes = 250'000;
    // Of the ranks that run every step of this engine together, in the same order; limits.head_shards is what they are
    // for this component (decl::head_shards). Must outlive the engine. A forward that fails on one rank aborts it, so
    // that no other waits. Default: alone.
    MeshEnds mesh = {};
  };
  static Result<std::unique_ptr<Engine>> create(const decl::Decl& decl, decl::ComponentRef component, Options options,
                                                ResourceSet& resources, weights::WeightMap& weights, Device& device);
  ~Engine();

  // Records the graphs of Capture::rows, then those of Capture::regions, once every engine of the device stands (so
  // that they all fit). A no-op on a device that does not capture; buckets that cannot be recorded are logged and run
  // eagerly. exhausted.
  Status capture();

  // Whether rows of a step N+1 may be prepared and launched before N's outcome is known: the device works while the
  // host goes on, the component allows it, and all of its resources can roll back.
  bool may_run_ahead() const;

  // Rows in the order of the input. `waiting` could not be admitted now (or two steps are in flight) and keep their
  // inputs; `failed` are over. A row ahead that asks for what cannot be taken back (a restart, a context, a fork)
  // waits: it is for a later step, when it is certain.
  //
  // Rows of a component with chunked_prefill come in the order of their requests, and may be parts: rows of one token
  // come first, the others share what is left of the step's tokens evenly. Give it all rows that there are: those over
  // the limits wait. `waiting` and RowResult tell how far each row has come.
  struct Prepared {
    StepPtr step;  // null when no row was admitted
    std::vector<RowInputs> waiting;
    std::vector<RowResult> failed;
  };
  Prepared prepare(std::vector<RowInputs> rows);
  // Runs the next slice; true when the forward is launched whole. After an Error the step must still be finished.
  Result<bool> advance(Step& step);
  // The outputs of a launched step before the host has them: values on the device, in the order of its stream, with
  // which the next step can be prepared and launched. What the forward said of its rows (errors, stopped loops) is
  // there.
  // Valid until the step finishes.
  const std::vector<RowResult>& promised(Step& step);
  // The row with this tag is not wanted any more: it is rolled back when the step finishes, and gives no outputs. Tags
  // that the step does not hold are ignored.
  void drop(Step& step, std::uint32_t tag);
  // Whether the device works on the step still, launched whole and not waited for. False on a CPU.
  bool is_running(const Step& step) const;
  // What a profile says of a step.
  struct StepShape {
    StepKind kind = StepKind::eager;
    int rows = 0;
    int tokens = 0;  // of rows that have none: the items of their first input
  };
  StepShape shape(const Step& step) const;
  // Blocks until the device is done with a launched step, the one wait of a step loop. finish does it too.
  void wait(Step& step);
  // Waits for the device, commits, and gives each row its outputs. On a failed forward every row carries the error.
  // Steps finish in the order in which they were prepared.
  std::vector<RowResult> finish(StepPtr step);

  // ---- for ranks that work in step (engine_in_step.cc)
  // ok, or why the step fails.
  static Status status(const Step& step);
  // Before it finishes: all its rows fail with this error, whatever became of them.
  static void fail(Step& step, const Error& error);
  // What became of rows: the same on ranks that were given the same. `step` may be null.
  std::uint64_t digest(const Prepared& prepared) const;
  static std::uint64_t digest(const std::vector<RowResult>& results);

  // A row that had begun and will not come again: its label is as it was before.
  void undo(RequestId request, const Progress& progress);
  void forget(RequestId request) { body_->forget(request); }
  const decl::DeviceComponent& spec() const { return spec_; }
  decl::ComponentRef component() const { return component_; }
  const StepCounters& counters() const { return counters_; }
  std::size_t weight_bytes() const { return body_->weight_bytes(); }
  std::size_t arena_bytes() const { return arena_->bytes(); }
  // Captured sizes, and the nodes of the graph of one; empty and 0 where nothing is captured.
  const BucketTable& buckets() const { return buckets_; }
  std::size_t num_graph_nodes(int bucket) const;
  // Of graphs of steps and of regions: how many there are, and device memory that only they use.
  int num_graphs() const;
  std::size_t captured_bytes() const { return captured_bytes_; }

 private:
  Engine(const decl::Decl& decl, decl::ComponentRef component, Options options, ResourceSet& resources, Device& device);
  // Null where the component is whole.
  // The groups of the mesh that compute this component.
  MeshEnds mesh() const;
  bool on_cpu() const { return device_.id().backend == Backend::cpu; }
  Arena step_arena() const { return arena_->arena(borders_.bytes()); }
  Result<RowDemand> declare(const RowInputs& row);
  Result<resource::Admit> admit(const RowInputs& row, const resource::StepRow& claim);
  void fork_after(Step& step);
  void admit_all(Step& step, std::vector<RowInputs> rows, Prepared& out);
  void plan(Step& step);
  void bind(Step& step);
  void commit(Step& step);
  void admit_rows(Step& step, std::vector<RowInputs> rows, Prepared& out);
  void add_admitted(Step& step, RowInputs row, RowDemand demand, const resource::StepRow& claim);
  // engine_sequences.cc
  Status find_ids_slot();
  void admit_sequences(Step& step, std::vector<RowInputs> rows, Prepared& out);
  struct Candidate;
  Result<bool> open(Candidate& candidate);
  void admit_part(Step& step, Candidate& candidate, int tokens, Prepared& out);
  RowDemand part_of(Step& step, const Candidate& candidate, int tokens) const;
  // Has the part's step keep the row's states where they are to be kept before its end.
  void keep_in_passing(const Candidate& candidate, resource::RowDemand& part);
  // Returns the snapshot in which the row's states are to be kept, or -1.
  int commit_part(Step& step, int row);
  void save_states(Step& step, int row, int snapshot);
  // engine_io.cc
  Status gather(Step& step);
  Status allocate_outputs(Step& step);
  void join_uploads(Step& step);
  Status read_back(Step& step);
  void make_outputs(Step& step);
  void bring_to_host(Step& step) const;
  // engine_capture.cc
  bool matches(const RowInputs& row, const RowDemand& demand, const CaptureSpec& spec) const;
  bool may_join(const RowInputs& row, const RowDemand& demand, const CaptureSpec& spec) const;  // spec.packed
  std::vector<Bucket> buckets_of(const CaptureSpec& spec, const std::vector<int>& rows,
                                 const std::vector<int>& tokens) const;
  static std::vector<int> up_to(const std::vector<int>& sizes, int most);
  std::vector<int> sizes_of(const std::vector<int>& rows) const;
  std::vector<int> packed_tokens() const;
  std::vector<std::int64_t> static_items(int max_rows) const;
  bool lease_whole(Step& step);
  Status allocate_static_memory(int max_rows);
  void add_recorded_rows(Step& step, const CaptureSpec& spec, const Bucket& bucket, int segments) const;
  Status begin_recording(Step& step, const CaptureSpec& spec, const Bucket& bucket, int slot, int segments);
  Result<std::unique_ptr<CapturedGraph>> record(const CaptureSpec& spec, const Bucket& bucket, int slot);
  using RecordSlot = std::function<Result<std::unique_ptr<CapturedGraph>>(int slot)>;
  Result<std::optional<Graphs>> record_both(const std::string& what, const Bucket& bucket, const RecordSlot& record);
  Status capture_whole(const std::vector<int>& sizes);
  Status run_slices(Step& step);
  Status replay(Step& step);
  Status reserve_buffers();
  // engine_regions.cc
  Status find_regions();
  bool fits(const Step& step, const Region& region, const CaptureSpec& kind) const;
  std::optional<int> find_graph(const Step& step, const Region& region) const;
  void lease_regions(Step& step);
  void pad(Step& step, const CaptureSpec& kind, int num_rows, int num_segments) const;
  Result<std::unique_ptr<CapturedGraph>> record_region(int index, const Bucket& bucket, int slot);
  Status capture_region(int index);

  const decl::Decl& decl_;
  const decl::DeviceComponent& spec_;
  decl::ComponentRef component_;
  Options options_;
  ResourceSet& resources_;
  Device& device_;
  std::unique_ptr<ComponentBody> body_;
  Labels labels_;
  std::vector<SlotSpec> input_slots_, output_slots_;
  resource::PagedKvPool* sequences_ = nullptr;  // of a component with chunked_prefill
  int ids_slot_ = -1;
  std::vector<resource::StateSlots*> states_;  // beside them, which follow their tokens
  std::shared_ptr<ActivationArena> arena_;
  int first_plan_slot_ = 0;  // of the resources
  PlanSlots slots_;
  std::array<SlotMemory, resource::kNumSlots> memory_;
  std::vector<CaptureSpec> captures_;
  BucketTable buckets_;
  std::vector<Graphs> graphs_;  // by bucket
  Borders borders_;
  std::vector<Region> regions_;  // as the body has them
  std::size_t captured_bytes_ = 0, num_captured_nodes_ = 0;
  StepCounters counters_;
};

}  // namespace mstar::engine
