// What a worker in a process of its own and the process that started it say to each other, beside the messages of every
// worker.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/wire/messages.h"

namespace mstar::wire {

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
  };
  WorkerId worker;
  std::int32_t device = 0;       // of CUDA devices
  bool on_cuda = false;          // else on the processor
  std::int32_t num_threads = 1;  // of CPU steps
  std::string log_level;
  std::vector<Model> models;
};

// A worker's message to one of the first process, where the host components run.
struct PeerMessage {
  WorkerId to;
  ToWorker message;
};

// Comes with a socket, over which ToWorker frames go to and from `worker` from now on.
struct PeerSocket {
  WorkerId worker;
};

// Asks a worker's process whether it gets on; answered by a Pong at once.
struct Ping {};
struct Pong {
  std::uint64_t num_turns = 0;  // of the worker's loop so far, and pieces that it has loaded
};

using Frame = std::variant<ToWorker, ToConductor, PeerMessage, WorkerStats, WorkerSetup, PeerSocket, Ping, Pong>;

}  // namespace mstar::wire
