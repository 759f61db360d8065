// What a worker in a process of its own and the process that started it say to each other, beside the messages of every
// worker.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/base/shares.h"
#include "mstar/wire/messages.h"

namespace mstar::wire {

// Bumped on every change of a struct below; it stands beside kVersion in each frame.
inline constexpr std::uint32_t kProcessVersion = 9;

// The first frame to a worker process: what it loads and runs.
struct WorkerSetup {
  struct Model {
    std::string model;  // as in `models:` of the configuration
    std::string name;   // as served
    Params options;
    std::vector<decl::ComponentRef> components;  // device components that this worker runs
    std::int32_t max_requests = 0;
    std::int32_t max_rows = 0;
    std::int32_t max_tokens = 0;
    std::vector<decl::ComponentRef> in_step = {};  // of them those that its group runs
  };
  WorkerId worker;
  std::int32_t device = 0;       // of CUDA devices
  bool on_cuda = false;          // else on the processor
  std::int32_t num_threads = 1;  // of CPU steps
  std::string log_level;
  std::vector<Model> models;
  // Of a rank that works in step with others: the workers of its group by their rank in it, itself among them; the
  // first leads. Empty: it works alone. On the processor the memory in which they meet comes along as a descriptor,
  // where they compute together.
  std::vector<WorkerId> group = {};
  bool computes_together = false;
  std::int32_t num_row_parts = 1;  // of the ranks: sp_size; the rest are parts of weights
};

// Of the ranks of its group. internal when they are no mesh.
inline Result<MeshSize> mesh_of(const WorkerSetup& setup) {
  const auto num_ranks = static_cast<int>(setup.group.size());
  if (setup.num_row_parts < 1 || num_ranks % setup.num_row_parts != 0) return internal_error("ranks that are no mesh");
  return MeshSize{.tensor = num_ranks / setup.num_row_parts, .sequence = setup.num_row_parts};
}

// A worker's message to one of the first process, where the host components run.
struct PeerMessage {
  WorkerId to;
  ToWorker message;
};

// Comes with a socket, over which ToWorker frames go to and from `worker` from now on.
struct PeerSocket {
  WorkerId worker;
};

// Between ranks in step: a worker::StepMessage as its codec has it.
struct StepBytes {
  std::string bytes;
};

// Asks a worker's process whether it gets on; answered by a Pong at once.
struct Ping {};
struct Pong {
  std::uint64_t num_turns = 0;  // of the worker's loop so far, and pieces that it has loaded
};

using Frame =
    std::variant<ToWorker, ToConductor, PeerMessage, WorkerStats, WorkerSetup, PeerSocket, Ping, Pong, StepBytes>;

}  // namespace mstar::wire
