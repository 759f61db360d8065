// What the conductor and the workers say to each other. Plain data: the same structs travel in process and, through the
// codec, between processes. Order is kept per sender; across senders it is not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
inline constexpr std::uint32_t kVersion = 1;

// ---- to a worker
// -------------------------------------------------------------------------------------------------------
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
struct Shutdown {};
using ToWorker = std::variant<AddRequest, PartitionMessage, CancelPartition, RemoveRequest, Shutdown>;

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
};
struct ClientValue {
  RequestId request;
  decl::PortRef port;
  std::vector<HostValue> values;
};
struct RequestFailed {
  RequestId request;
  Error error;
};
struct Removed {
  RequestId request;
  WorkerId worker;
};
using ToConductor = std::variant<WorkerReady, WorkerFailed, FragmentReport, ClientValue, RequestFailed, Removed>;

// How a worker or the conductor reaches the others. Thread: any; never blocks. False when the receiver is gone.
class Mesh {
 public:
  virtual ~Mesh() = default;
  virtual bool to_worker(WorkerId worker, ToWorker message) = 0;
  virtual void to_conductor(ToConductor message) = 0;
};

// Values of kept ports above this size stay at the workers: plans don't see them.
inline constexpr std::size_t kMaxPlanValueBytes = 64 * 1024;

}  // namespace mstar::wire
