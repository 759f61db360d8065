// What ranks in step that are processes say to each other, as bytes.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "mstar/graph/compiled.h"
#include "mstar/worker/step_log.h"

namespace mstar::worker {

// The group has ended, to every other rank.
struct StepEnd {
  std::string reason;
};
// What the ranks' communicators find each other by (NCCL's unique id), from the leader to each follower.
struct StepKey {
  std::string bytes;
};
using StepMessage = std::variant<LogEntry, Ack, StepEnd, StepKey>;

// The models by their index in the deployment. Of a row's run its walk and node travel, of its parameters the request's
// id: a LogAdd of it comes first. Values of devices travel as host bytes. Little-endian, the version first. internal
// for a run that is not of its walk; errors of the copy to the host. Cost: one pass, one copy.
Result<std::string> encode(const StepMessage& message, std::span<const graph::CompiledModel* const> models);

// Reads what one sender wrote, in its order. Thread: one.
class StepReader {
 public:
  // As the reader's rank has them; they outlive what is read.
  explicit StepReader(std::vector<const graph::CompiledModel*> models) : models_(std::move(models)) {}
  // For any bytes: internal when they are no message of this version, whole and without rest, or speak of models,
  // components, nodes, ports or requests that there are not. Every length is checked against what is left before
  // anything is sized by it.
  Result<StepMessage> decode(std::span<const std::byte> bytes);

 private:
  std::vector<const graph::CompiledModel*> models_;
  std::map<RequestId, std::shared_ptr<const decl::RequestParams>> params_;  // of requests that were added
};

}  // namespace mstar::worker
