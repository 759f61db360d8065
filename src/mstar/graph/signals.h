// What workers and the conductor tell each other about a partition's walk. Plain data: wire/ writes it, PartitionState
// reads it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/base/value.h"
#include "mstar/decl/plan.h"
#include "mstar/graph/compiled.h"

namespace mstar::graph {

// Conductor -> worker: run your part of `walk`. Passes of a partition count 1, 2, 3, ...; a start comes after every
// fragment of the pass before it is done (or cancelled).
struct StartPass {
  decl::WalkRef walk;
  std::int32_t pass = 0;
  std::vector<std::pair<LoopIndex, std::int32_t>> caps;      // >= 1; loops not named keep at_most
  std::map<std::string, std::int64_t> flags;                 // step parameters for components
  std::vector<std::pair<decl::PortRef, Values>> inputs;      // given by the plan; win over kept values
  std::vector<std::pair<decl::PortRef, std::int32_t>> kept;  // pass that last wrote each kept input; 0 = the request
  std::vector<std::pair<decl::PortRef, std::int64_t>>
      stream_base;                    // index of the first item that this pass may produce
  std::vector<decl::PortRef> forget;  // kept values that are dropped once they were delivered
};

// Worker -> worker: a value for nodes of the same pass.
struct Delivery {
  std::int32_t pass = 0;
  EdgeIndex edge = kNoEdge;
  LoopPath path;  // iterations of the edge's loops in which it is consumed
  Values values;
};

// Worker -> worker: the last value of a Keep port in a pass, for later walks.
struct KeptValue {
  decl::PortRef port;
  std::int32_t pass = 0;
  Values values;
};

// Producer -> the stream's worker in the consuming partition. Conductor -> the same for FromClient ports.
struct StreamItems {
  decl::PortRef port;
  std::int64_t first_index = 0;
  Values items;
};
// Conductor -> the stream's worker: the producer is done after `num_items` in all.
struct StreamEnd {
  decl::PortRef port;
  std::int64_t num_items = 0;
};

// Worker -> workers of the same loop: path.at[path.depth - 1] is the last iteration. Send it before the deliveries of
// the same Effects: then no peer starts an iteration that must not run.
struct LoopStop {
  std::int32_t pass = 0;
  LoopIndex loop = kNoLoop;
  LoopPath path;
};

struct FragmentLoopEnd {
  LoopIndex loop = kNoLoop;
  decl::LoopEnd end = decl::LoopEnd::cap;
  std::int32_t iterations = 0;
};

// Worker -> conductor, once per fragment and pass.
struct FragmentDone {
  decl::WalkRef walk;
  std::int32_t pass = 0;
  std::vector<FragmentLoopEnd> loop_ends;  // of loops that have work here; the last time each ended
  std::vector<decl::PortRef> kept;         // Keep ports written here in this pass
  std::vector<std::pair<decl::PortRef, std::int64_t>> produced;  // stream items produced here in this pass
  std::vector<std::pair<decl::PortRef, std::int64_t>> consumed;  // stream items consumed here so far, in all passes
  std::int64_t num_tokens = 0;                                   // counted here in this pass
  bool final_consumed = false;  // a final chunk went in: no further pass of this partition can run
  bool end_partition = false;   // a stop at prefill
  bool budget_spent = false;    // ... because of the token budget, not of a stop id
  bool cancelled = false;       // the pass was cut off; kept values that it wrote are lost
};

// The request is gone; everything after it is void.
struct Removal {};

using Signal = std::variant<StartPass, Delivery, KeptValue, StreamItems, StreamEnd, LoopStop, Removal>;
struct PartitionSignal {
  decl::PartitionRef partition;
  Signal signal;
};

// Signals of requests that this worker does not know yet: messages of two senders may overtake each other. Thread: the
// owner's.
class EarlySignals {
 public:
  explicit EarlySignals(std::size_t max_signals = 4096) : max_signals_(max_signals) {}
  // False when the holder is full: the caller reports the request as failed.
  bool hold(RequestId request, PartitionSignal signal);
  struct Replay {
    std::vector<PartitionSignal> signals;  // in order of arrival, those before a removal
    bool removed = false;                  // a removal was among them: don't create state, nothing else is replayed
  };
  // Forgets what is held for requests before this one: requests are added in the order of their ids, so those never
  // will be.
  void forget_before(RequestId request);
  // Everything held for the request; it is forgotten here.
  Replay take(RequestId request);
  std::size_t num_signals() const { return num_signals_; }

 private:
  std::unordered_map<RequestId, std::vector<PartitionSignal>> held_;
  std::size_t num_signals_ = 0;
  std::size_t max_signals_;
};

}  // namespace mstar::graph
