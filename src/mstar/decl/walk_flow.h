// Where each value of a walk comes from and how far it goes: the reading of a walk's sections that validate() and the
// runtime share. Indices are positions in WalkFlow.
#pragma once

#include <string>
#include <vector>

#include "mstar/decl/decl.h"

namespace mstar::decl {

struct FlowSource {
  int node = -1;  // -1: from outside of the walk
  int output = -1;
  int depth = 0;  // number of loops round both ends
};
struct FlowBack {
  int loop = -1;  // the value of one of its iterations is the input of the next
  int node = -1;
  int output = -1;
};
struct FlowInput {
  PortRef port;
  FlowSource first;             // gives the value, or the first iteration's
  std::vector<FlowBack> backs;  // innermost loop first
};
struct FlowOutput {
  PortRef port;
  int travel_depth =
      0;  // loops that are still round the value where it travels; -1: a later writer's value travels instead
};
struct FlowNode {
  const Run* run = nullptr;
  std::vector<int> loops;  // outermost first
  std::vector<FlowInput> inputs;
  std::vector<FlowOutput> outputs;
};
struct FlowExport {
  int node = -1;
  int output = -1;
  bool all = false;  // accumulated
};
struct FlowLoop {
  const Loop* spec = nullptr;
  int parent = -1;
  int depth = 1;  // 1 = outermost
  std::vector<FlowExport> exports;
};
struct WalkFlow {
  std::vector<FlowNode> nodes;  // in the order in which the sections name them
  std::vector<FlowLoop> loops;  // outer before inner
  std::vector<std::string> faults;
};

// Rules: a later section of a sequence takes what an earlier one made; the parts of a Parallel take each other's
// values; in a loop an input that is made at or after its reader is looped back, and its first value comes from
// outside. A loop's values are seen outside of it only if it exports them. Port references must be in range. Cost: once
// per model.
WalkFlow trace_flow(const Decl& model, const Walk& walk);

}  // namespace mstar::decl
