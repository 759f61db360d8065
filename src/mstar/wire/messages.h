// What the conductor and the workers say to each other. Plain data: the same structs travel in process and, through the
// codec, between processes. Order is kept per sender; across senders it is not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/base/result.h"
#include "mstar/base/value.h"
#include "mstar/decl/plan.h"
#include "mstar/decl/refs.h"
#include "mstar/decl/request.h"
#include "mstar/graph/signals.h"

namespace mstar::wire {

// Bumped on every change of a struct below or of graph/signals.h; processes of different versions refuse each other.
inline constexpr std::uint32_t kVersion = 6;

// ---- to a worker
// -------------------------------------------------------------------------------------------------------
// Requests are added in the order of their ids: a worker drops what comes for an older one that it does not have.
struct AddRequest {
  RequestId request;
  std::uint32_t model = 0;  // index in the deployment
  std::shared_ptr<const decl::RequestParams> params;
  std::vector<WorkerId> placement;                       // graph::RequestPlacement::table()
  std::vector<std::pair<decl::PortRef, Values>> inputs;  // FromRequest ports that this worker reads
};
struct PartitionMessage {
  RequestId request;
  graph::PartitionSignal signal;
};
struct CancelPartition {
  RequestId request;
  decl::PartitionRef partition;
  bool drop_streams = true;
};
// Hard teardown; answered by Removed once nothing of the request is left, also for a request that the worker never
// knew.
struct RemoveRequest {
  RequestId request;
};
// The request's next walk uses these resources on another worker: the receiver takes out what it keeps of the request
// there, once no row of the partition is in flight, and sends it as StateParcel.
struct HandOver {
  RequestId request;
  decl::PartitionRef partition;
  std::vector<decl::ResourceRef> resources;
  WorkerId to;
};
// Before the start of that walk: the request's nodes with resources wait for so many resources more.
struct AwaitState {
  RequestId request;
  std::uint32_t num_resources = 0;
};
// Worker -> worker: what the request keeps in resources, as they give it.
struct StateParcel {
  RequestId request;
  std::vector<std::pair<decl::ResourceRef, Values>> states;
};
// To a worker without requests: it lets go of all that it has loaded, as weights, pools and caches.
struct Unload {};
// Loads it again; answered by WorkerReady or WorkerFailed, also where it is loaded.
struct Load {};
struct Shutdown {};
using ToWorker = std::variant<AddRequest, PartitionMessage, CancelPartition, RemoveRequest, HandOver, AwaitState,
                              StateParcel, Unload, Load, Shutdown>;

// ---- to the conductor
// --------------------------------------------------------------------------------------------------
struct WorkerReady {
  WorkerId worker;
};
struct WorkerFailed {
  WorkerId worker;
  Error error;
};
// One worker's fragment of a walk is done, with the small host values of kept ports for the plan.
struct FragmentReport {
  RequestId request;
  WorkerId worker;
  decl::PartitionRef partition;
  graph::FragmentDone done;
  std::vector<std::pair<decl::PortRef, std::vector<HostValue>>> kept;
  std::int64_t cached_tokens = -1;  // of the request's prompts, found in this worker's caches; -1: it has none
};
// What a worker's step gives to the clients of its requests, in one message: it is a token for each of them.
struct ClientValues {
  struct Part {
    RequestId request;
    decl::PortRef port;
    std::uint32_t num_values = 0;
    std::int64_t cached_tokens = -1;  // as in FragmentReport, for an answer that ends before the walk does
  };
  WorkerId worker;
  std::vector<Part> parts;        // those of one request in their order
  std::vector<HostValue> values;  // of the parts, one after the other
};
struct RequestFailed {
  RequestId request;
  Error error;
};
struct Removed {
  RequestId request;
  WorkerId worker;
};
using ToConductor = std::variant<WorkerReady, WorkerFailed, FragmentReport, ClientValues, RequestFailed, Removed>;

// The request that a message is about; invalid when it is about none, or about several.
template <class... Messages>
RequestId request_of(const std::variant<Messages...>& message) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires { each.request; }) return each.request;
        if constexpr (requires { each.parts; })
          if (each.parts.size() == 1) return each.parts.front().request;
        return RequestId();
      },
      message);
}

// What /metrics and the start-up lines say of a worker.
struct WorkerStats {
  struct Pool {  // a resource of a model
    std::string model;
    std::string name;
    std::int64_t used = 0;  // pages, slots or rows
    std::int64_t total = 0;
    std::uint64_t bytes = 0;  // of device memory
    // Of paged KV.
    std::int64_t cached = 0;         // pages of no request, kept for prompts that begin as they do
    std::int64_t num_preempted = 0;  // times that a request's pages were taken away
    std::int64_t found_tokens = 0;   // prompt tokens that were not computed
    std::int64_t num_snapshots = 0;  // of the state beside these pages
  };
  struct Component {  // counters since the start
    std::string model;
    std::string name;
    std::int64_t num_steps = 0;
    std::int64_t num_rows = 0;
    std::int64_t num_tokens = 0;
    std::int64_t num_replays = 0;       // steps that were one launch of a captured graph
    std::int64_t num_eager = 0;         // steps without a graph
    std::int64_t num_allocations = 0;   // fresh device buffers
    std::int64_t num_ahead_rows = 0;    // rows launched before they were certain
    std::int64_t num_dropped_rows = 0;  // rows launched, and then not wanted
    std::int64_t num_host_syncs = 0;    // waits for the device
    std::int64_t num_piecewise = 0;     // steps that were not one graph, but had graphs of regions
    std::int64_t num_region_replays = 0;
  };
  std::vector<Pool> pools;
  std::vector<Component> components;
  std::int64_t num_requests = 0;
  std::uint64_t num_early_signals = 0;  // of requests that the worker does not know
  std::uint64_t weight_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t buffer_bytes = 0;
  std::uint64_t num_handed_over = 0;    // device buffers that went straight to other workers
  std::uint64_t handed_over_bytes = 0;  // of these
  std::uint64_t num_graphs = 0;         // captured
  std::uint64_t captured_bytes = 0;     // device memory that only they use
  std::uint64_t num_states_in = 0;      // times that a request's state came from another worker
  std::uint64_t state_in_bytes = 0;     // of these
  std::uint64_t state_wait_us = 0;      // that requests waited for it
};

// How a worker or the conductor reaches the others. Thread: any; never blocks. False when the receiver is gone.
class Mesh {
 public:
  virtual ~Mesh() = default;
  virtual bool to_worker(WorkerId worker, ToWorker message) = 0;
  virtual void to_conductor(ToConductor message) = 0;
  // Each of them in order; they are moved from. Costs less than one by one where the conductor is near.
  virtual void all_to_conductor(std::vector<ToConductor>& messages) {
    for (ToConductor& each : messages) to_conductor(std::move(each));
  }
};

// Values of kept ports above this size stay at the workers: plans don't see them.
inline constexpr std::size_t kMaxPlanValueBytes = 64 * 1024;

}  // namespace mstar::wire
