// What the author of a device component writes: declare what each row needs, then one forward over the whole batch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/value.h"
#include "mstar/decl/decl.h"
#include "mstar/ops/op_context.h"
#include "mstar/resource/resource.h"
#include "mstar/weights/weight_map.h"

namespace mstar::engine {

// How far a row of a component with chunked_prefill has come: its caller keeps it from one step to the next.
struct Progress {
  bool begun = false;   // forks before it and a restart are done
  int label = 0;        // of the KV
  int label_start = 0;  // tokens of the label when it began
  int done = 0;         // of its own tokens: they stand
  int num_parts = 0;    // that ran
};

// One request's part of a step. Everything it points at outlives the step.
struct RowInputs {
  RequestId request;
  std::shared_ptr<const decl::RequestParams> params;
  decl::WalkRef walk;
  const decl::Run* run = nullptr;
  std::vector<Values> ports;  // per input port of `run`
  std::vector<int> num_seen;  // per input port: leading items of a chunk that an earlier chunk held too; may be empty
  std::shared_ptr<const std::map<std::string, std::int64_t>> flags;  // of the walk, set by the plan; may be null
  int iteration = 0;                                                 // of the innermost loop
  bool is_final = false;                                             // the last chunk of a stream is among the inputs
  bool ahead = false;     // launched before it is certain: may be dropped, and its values may be promised ones
  std::uint32_t tag = 0;  // the caller's, given back in RowResult
  Progress progress = {};

  std::int64_t flag(const std::string& name, std::int64_t fallback) const;
  // The port's first value, or null when this run has no such port or it came empty.
  const Value* value(decl::PortRef port) const;
};

// A batch tensor of the forward: the items of all rows laid end to end, [total items, item_dims...].
struct SlotSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> item_dims = {};
  int max_items = 0;     // of one step; sizes captured buffers and the output pool
  bool to_host = false;  // outputs only: small results that the host reads each step (sampled tokens)
  // Inputs only: one item for each of the row's tokens, so that a part of the row's sequence gets its part of them. A
  // component with chunked_prefill has such a slot of i32 without item_dims, the ids: a row that has no other sources
  // for each token can be found in the prefix cache, and computed again.
  bool per_token = false;
};
// A row's share of an input slot: the value of one of its ports. A value of rank item rank + 1 counts dims[0] items, a
// value of the item's own rank counts one.
struct SlotSource {
  int slot = 0;
  const Value* value = nullptr;
  std::int64_t items = 0;  // counted by the engine
  std::int64_t begin = 0;  // the first of them in the value; set by the engine
};
// A row's share of an output slot, which becomes the value of an output port (index into Run::outputs; -1: to no port).
struct SlotResult {
  int slot = 0;
  int output = -1;
  int items = 0;
  bool drop_items_axis = false;  // one item becomes a value of the item's own rank
};

struct RowDemand {
  resource::RowDemand resources;
  std::vector<SlotSource> sources;
  std::vector<SlotResult> results;
  std::uint64_t shape_key = 0;  // what else must agree in a captured step: latent height and width, say
  bool may_replay = true;       // false: the forward reads this row on the host, so its step runs eagerly
  bool may_run_ahead = true;  // false: its plan depends on what the row before it gave, so it waits until that is read
  int segments = 1;  // parts of the row, as a packed region counts them (PiecewiseRegion::max_segments_per_request)
};

// A kind of step that may be captured: what each of its rows asks for. Also the demand of the rows that it is recorded
// with and padded with. Two kinds whose rows bring as many tokens differ in the walk or in RowDemand::shape_key.
struct CaptureSpec {
  decl::WalkRef walk = {};  // none: rows of any walk
  RowDemand row;     // its sources name values on the host that the body owns; all items of a slot alike, in all specs
  int max_rows = 0;  // of Capture::rows those up to this; 0: all
  // Rows of any lengths, and parts that do not end them, up to the most of Capture::rows and a number of
  // Capture::tokens together: a graph for each of these. `row` brings no tokens and no sources; those of real rows are
  // of slots with an item a token. Each row has its items in the output slots, also one that does not end, whose items
  // are nobody's. What the forward computes for tokens past the rows' last one is nobody's either (RaggedView).
  bool packed = false;
  // Of packed ones: also with so few rows, for up to so many tokens, where a step may have over four times the rows. A
  // step of no more rows then does nothing for rows that are nobody's.
  int few_rows = 0;
  int few_rows_tokens = 0;
};

// A part of the forward that has graphs of its own where the step has none (Forward::run_region).
struct RegionSpec {
  std::string name;  // of a PiecewiseRegion in Capture::regions, which has its sizes
  // The rows that its graphs are recorded with, and what pads a step's up to them; a step takes the first kind that
  // fits. With lease_before_step its rows ask of the resources, and bring into the slots, what the kind's do; without,
  // any rows may come, and all that matters is how many there are. A packed kind is recorded for the most of
  // PiecewiseRegion::rows and each of its tokens; what it brings into slots without an item a token is what a segment
  // does.
  std::vector<CaptureSpec> kinds;
};

// The batch as the forward sees it.
class Forward {
 public:
  virtual ~Forward() = default;
  virtual OpContext& ops() = 0;
  virtual int num_rows() const = 0;
  virtual const RowInputs& row(int r) const = 0;
  virtual const RowDemand& demand(int r) const = 0;
  // False: the step runs a part of the row's sequence that does not end it (chunked_prefill). In an eager step the
  // row has no items in any output slot then, and must not be sampled; in a packed one (CaptureSpec) both are nobody's.
  bool row_ends(int r) const { return demand(r).resources.ends; }
  // Each row has its place in what is planned and its items in the outputs, also one that does not end: those are
  // nobody's, and it may be sampled as the others are. True of steps of packed graphs.
  virtual bool has_all_places() const = 0;
  // Runs a part of the forward: `part` by calling it, or instead its graph that the step leased, which was recorded
  // from `part` in a step of other rows. So it may read and write only what lies at one place in all steps of a plan
  // slot: weights, resources, borders and, with lease_before_step, inputs and plan buffers; not the outputs. What the
  // forward took from the arena before it is gone after it. Once a slice for each region.
  virtual Status run_region(int region, const std::function<Status()>& part) = 0;
  // What crosses the borders of regions (ComponentBody::borders): [rows or tokens of the step, item_dims...]. Lasts
  // from the start of a slice to its end. A graph of more rows writes past them, for nobody.
  virtual TensorView border(int index) const = 0;
  // The rows' items of an input slot; offsets [num_rows + 1] on the host.
  virtual TensorView input(int slot) const = 0;
  virtual std::span<const std::int32_t> input_offsets(int slot) const = 0;
  virtual TensorView output(int slot) const = 0;
  virtual std::span<const std::int32_t> output_offsets(int slot) const = 0;
  virtual resource::Resource& resource(decl::ResourceRef ref) const = 0;
  // Which of the double-buffered plan buffers this step uses.
  virtual int plan_slot() const = 0;
  // Token offsets [num_rows + 1] on the host.
  virtual std::span<const std::int32_t> token_offsets() const = 0;
  // The row's component signal: the named loop ends after this iteration.
  virtual void stop_loop(int row, std::string_view loop) = 0;
  // Fails one row; the others go on.
  virtual void fail_row(int row, Error error) = 0;
};

// Owner thread: the worker's step loop, for every call. A row with RowInputs::ahead may be dropped after its forward,
// and its promised values are on the device alone: a body that keeps state of its own for a request, or reads on the
// host what a step before made, declares DeviceComponent::run_ahead = false.
class ComponentBody {
 public:
  virtual ~ComponentBody() = default;
  virtual std::vector<SlotSpec> input_slots() const = 0;
  virtual std::vector<SlotSpec> output_slots() const = 0;
  // What this row needs: of a component with chunked_prefill the row whole, of which the engine may run a part a step.
  // An Error fails the row. Host only; microseconds.
  virtual Result<RowDemand> declare(const RowInputs& row) = 0;
  // The kinds of step whose forward reads their rows through device memory alone: inputs, plan buffers, resources. On a
  // device that captures, such a forward is run for each bucket of Capture::rows, recorded for it and each plan slot,
  // with rows of no request (their RowInputs name no run), and replayed for batches of up to as many rows. It must not
  // allocate, wait, or read what the host changes.
  virtual std::vector<CaptureSpec> captures() const { return {}; }
  // Its regions, and the buffers that they leave results in or find them in: an item for each row, or for each token
  // (per_token). They lie in front of the arena, also where nothing is captured.
  virtual std::vector<RegionSpec> regions() const { return {}; }
  virtual std::vector<SlotSpec> borders() const { return {}; }
  // Arena bytes that one step of this size needs, for use within one slice. Host only.
  virtual std::size_t workspace_bytes(int rows, int tokens) const = 0;
  // A forward of n > 1 slices is run slice by slice; between two of them the worker may run other components.
  virtual int num_slices() const { return 1; }
  virtual Status forward(Forward& step, int slice) = 0;
  // What the resources are to know of the step's rows before they plan; the rows are admitted, there is no input yet.
  virtual void before_plan(Forward&) {}
  // A row's step ended well, and its outputs (by output port) have their host parts: what the resources are to know of
  // them before a later row is planned.
  virtual void after_row(Forward&, int, const std::vector<Values>&) {}
  // The request is gone: drop what the body keeps for it.
  virtual void forget(RequestId) {}
  // What OpContext::activations is in its forward.
  virtual DType activations() const { return DType::f32; }
  // Bytes of weights held, for the memory plan.
  virtual std::size_t weight_bytes() const { return 0; }
};

// What a body is built from.
struct BuildContext {
  const decl::Decl& decl;
  std::string_view component;  // its name; lives as long as `decl`
  weights::WeightMap& weights;
  Device& device;
  ThreadPool* pool = nullptr;
  Arena* scratch = nullptr;
  resource::PoolLimits limits;
  DType compute = DType::f32;
  // The groups in which the ranks compute the component together: `tensor` of those that hold the other parts of its
  // weights (decl::DeviceComponent::tensor_parallel), `sequence` of those that have the other rows (sequence_parallel).
  MeshEnds mesh = {};
  Ranks ranks() const { return ranks_of(mesh.tensor); }
  Ranks sequence() const { return ranks_of(mesh.sequence); }
};

}  // namespace mstar::engine
