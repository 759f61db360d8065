// Components: compute with weights and resources on a device, or pure functions on the host pool.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/result.h"
#include "mstar/base/shares.h"
#include "mstar/decl/refs.h"
#include "mstar/decl/request.h"

namespace mstar::engine {
class ComponentBody;  // the forward of a device component (engine/component_body.h)
struct BuildContext;  // device, weights and resources that a body is built from
}  // namespace mstar::engine

namespace mstar::decl {

using BuildBody = std::function<Result<std::unique_ptr<engine::ComponentBody>>(engine::BuildContext&)>;

// A part of a forward that is captured by itself while the rest runs eagerly.
struct PiecewiseRegion {
  std::string name;
  std::vector<int> rows;           // captured bucket sizes
  std::vector<int> tokens;         // captured token counts of a packed region; empty for a batched one
  bool lease_before_step = false;  // it reads the step's inputs and plans, which are padded for its graph
  bool one_row_per_step = false;   // the whole step is one row; all its segments count against max_segments_per_request
  int max_segments_per_request = 1;
};
struct Capture {
  std::vector<int> rows;    // whole-step buckets; empty: never captured whole
  std::vector<int> tokens;  // packed buckets; empty: one token a row
  std::vector<PiecewiseRegion> regions;
};
// Walks of one component whose rows may share a batch.
struct CombinedWalks {
  std::string name;
  std::vector<WalkRef> walks;
};

// Equal units of a component that ranks share out evenly: heads, or what is part of the weights alone.
struct SharedUnits {
  std::string name;  // "query heads"
  int count = 0;
  bool are_heads = true;    // shared out over sequence ranks too
  bool may_repeat = false;  // fewer than ranks are each held by several
};

struct DeviceComponent {
  std::string name;
  BuildBody build = {};  // empty only in fixtures that run with a null engine
  std::vector<std::string> homes =
      {};  // prefixes of its weights' homes: a checkpoint weight of these that it leaves is a fault
  std::vector<ResourceRef> uses = {};
  Capture capture = {};
  DType compute = DType::f32;
  int max_batch_rows = 1;
  int max_batch_tokens = 0;  // 0: no limit but rows
  // On an asynchronous device step N+1 may be prepared while N runs. Its body then sees values that N makes as tensors
  // on the device, not on the host. No effect while a resource of `uses` cannot roll back (RecurrentState in place,
  // Latents).
  bool run_ahead = true;
  bool chunked_prefill = false;  // long inputs are split over steps under max_batch_tokens
  // Without any, rows of all walks share steps. Else those of one entry's walks do, and a walk of no entry has steps of
  // its own; the walks take turns, whoever has waited longest first.
  std::vector<CombinedWalks> combined = {};
  double slice_ms = 50;  // yield points: no slice on a CPU is longer
  // On a group of ranks that work in step each holds a part of its weights and of its resources' heads (see
  // engine::BuildContext::mesh). False: each holds and computes the whole.
  bool tensor_parallel = false;
  // With tensor_parallel: where a group has sequence ranks, they have parts of a step's rows, and of the heads in
  // attention; weights are cut over its tensor ranks alone. False: weights are cut over all ranks of the group.
  bool sequence_parallel = false;
  // Without sequence_parallel: false where its heads and weights are cut over the tensor ranks alone, and the sequence
  // ranks compute the same.
  bool shard_over_sp = true;
  // What must divide, so that a placement that cannot work is refused before weights are read.
  std::vector<SharedUnits> shared_units = {};
};

// Ranks of such a group that hold different parts of the component's weights, and of its resources' heads.
inline int weight_shards(const DeviceComponent& component, MeshSize mesh) {
  if (!component.tensor_parallel) return 1;
  return component.sequence_parallel || !component.shard_over_sp ? mesh.tensor : mesh.num_ranks();
}
inline int head_shards(const DeviceComponent& component, MeshSize mesh) {
  return weight_shards(component, mesh) * (component.sequence_parallel ? mesh.sequence : 1);
}

// What a host stage reads: the values of its Run's input ports, in the Run's order. A chunked stream input holds the
// chunk's items, other ports one value (or one per loop iteration when accumulated).
struct HostInputs {
  WalkRef walk;
  std::vector<std::vector<HostValue>> ports;
  std::vector<int> num_seen = {};  // per port: leading items of a chunk that an earlier chunk held too (its context)
  bool is_final = false;           // the last chunk of a stream is among the inputs
  const RequestParams* params = nullptr;
  // Set from another thread once nobody waits for the outputs: the request has ended, or the runtime stops. A run that
  // may take long looks at it often and returns an error (of any code: nobody sees it). Null: never set.
  const std::atomic<bool>* abandoned = nullptr;
  bool is_abandoned() const { return abandoned && abandoned->load(std::memory_order_relaxed); }
};
// Values of the Run's output ports, in the Run's order; an empty list leaves that port unrouted.
struct HostOutputs {
  std::vector<std::vector<HostValue>> ports;
  std::vector<std::string> stop_loops = {};  // component signals: loops of this walk that end after this iteration
};

// One per request: may keep state between runs. Thread: the pool, or the worker's for a light one; one run at a time
// per request.
class HostStage {
 public:
  virtual ~HostStage() = default;
  virtual Result<HostOutputs> run(const HostInputs& inputs) = 0;
  // Whether this run takes a millisecond or so at most: a worker that has no other request then runs it itself, which
  // spares two threads' wakes. Called in front of it, by the worker's thread.
  virtual bool is_brief(const HostInputs& /*inputs*/) const { return false; }
};
struct HostComponent {
  std::string name;
  std::function<std::unique_ptr<HostStage>(const RequestParams&)> make = {};
  // A run takes less time than to wake a thread of the pool and be woken by it (some 100 us): it is done at once, on
  // the thread that hands out all host components' work.
  bool is_light = false;
};

}  // namespace mstar::decl
