// A whole request on virtual workers with a null engine: messages of different senders overtake each other, components
// finish in any order, loops stop and streams end at random. Every input of every step is compared with what the
// declaration says it is.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mstar/graph/partition_progress.h"
#include "mstar/graph/partition_state.h"

namespace mstar::graph::sim {

struct Options {
  std::uint64_t seed = 0;
  int num_workers = 1;
  double stop = 0.1;        // chance of a stop signal per step that may give one
  double ahead = 0.3;       // chance to try to run ahead per action
  double duplicate = 0.05;  // chance to send a worker-to-worker message twice
  double abort = 0;         // chance per action that the request is aborted
  double cancel = 0;        // chance per action that a partition is cut off
  int client_items = 12;    // items that the client sends on each FromClient port, at most
};

struct Outcome {
  std::vector<std::string> faults;  // broken invariants; empty = the run was right
  std::int64_t steps = 0;           // component runs that were committed
  std::int64_t ahead_kept = 0;
  std::int64_t ahead_dropped = 0;
  std::int64_t refused = 0;  // signals that were refused softly
  std::int64_t stopped_loops = 0;
  std::int64_t client_values = 0;
  std::int64_t num_tokens = 0;
  std::int64_t live_values = 0;  // after the end; 0 unless values leak
  bool aborted = false;
};

// Runs one request to its end (or abort). `params` go to the plans.
Outcome run(const PlacedModel& placed, std::shared_ptr<const PlacedModel> owner, const decl::RequestParams& params,
            const Options& options);

// A placement of each component on one of `num_workers`, or of each (component, walk) when `by_walk`; one that place()
// refuses is replaced by a simpler one.
std::shared_ptr<const PlacedModel> random_placement(const CompiledModel& model, std::uint64_t seed, int num_workers,
                                                    bool by_walk);

}  // namespace mstar::graph::sim
