// Walks: what runs, in what order, as data. Order inside a walk follows from the ports alone.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "mstar/decl/refs.h"

namespace mstar::decl {

// A copy of one label's state to another.
struct Fork {
  std::string from;
  std::string to;
};

// One run of a component. Ready when every input is present. `outputs` are possible outputs: one that the component
// leaves empty is not routed.
struct Run {
  ComponentRef component;
  std::vector<PortRef> inputs = {};
  std::vector<PortRef> outputs = {};
  std::vector<std::string> labels = {"main"};
  std::vector<Fork> forks_before = {};
  std::vector<Fork> forks_after = {};
};

struct Section;
struct Sequential {
  std::vector<Section> sections;
};
struct Parallel {
  std::vector<Section> sections;
};

// Ends a loop, or a partition at prefill, when a sampled token is a stop id. Evaluated for the whole batch from one
// host copy.
struct TokenStop {
  PortRef token;                                // i32, the sampled ids
  std::vector<std::int32_t> ids;                // stop ids; a request may add its own
  std::vector<std::string> prefill_walks = {};  // there a stop id or a one-token budget ends the partition
  std::string last_prefill_flag =
      {};  // flag of the walk that marks the pass whose token is the reply's; empty: each pass
};
// Ends only at the cap.
struct StepCount {};
// A component of the body says when (HostOutputs::stop_loops or the engine's row signal).
struct ComponentSignal {};
using Stop = std::variant<StepCount, TokenStop, ComponentSignal>;

// The largest number of iterations; a plan may lower or raise it per request (NextWalk::caps).
struct Loop {
  std::string name;
  std::vector<Section> body;
  Stop stop = StepCount{};
  int at_most = 1;
  std::vector<PortRef> outputs = {};      // the last value leaves when the loop ends
  std::vector<PortRef> accumulated = {};  // every iteration's value leaves, as one list, when the loop ends
};

struct Section : std::variant<Run, Sequential, Parallel, Loop> {
  using std::variant<Run, Sequential, Parallel, Loop>::variant;
};

struct Walk {
  std::string name;
  Section root = Sequential{};
};

}  // namespace mstar::decl
