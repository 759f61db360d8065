// Walks as dense arrays: what the declaration says once, made cheap to run. Immutable after compile(); shared by all
// threads.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/decl/decl.h"

namespace mstar::graph {

using NodeIndex = std::uint16_t;  // of one walk, in the order in which the walk's sections name the Runs
using LoopIndex = std::uint8_t;   // of one walk, outer before inner
using EdgeIndex = std::uint16_t;  // of one walk
inline constexpr NodeIndex kNoNode = std::numeric_limits<NodeIndex>::max();
inline constexpr LoopIndex kNoLoop = std::numeric_limits<LoopIndex>::max();
inline constexpr EdgeIndex kNoEdge = std::numeric_limits<EdgeIndex>::max();
inline constexpr int kMaxLoopDepth = 4;
inline constexpr int kMaxNodeInputs = 64;

// Iteration of each enclosing loop, outermost first.
struct LoopPath {
  std::array<std::int32_t, kMaxLoopDepth> at = {};
  std::uint8_t depth = 0;

  friend bool operator==(const LoopPath&, const LoopPath&) = default;
};

struct Target {
  NodeIndex node = kNoNode;
  std::uint8_t slot = 0;  // position in Run::inputs
};

// One producer's output at one loop level, with every input that takes it there.
struct Edge {
  decl::PortRef port;
  NodeIndex from = kNoNode;  // kNoNode: an external input of the walk
  std::uint8_t output = 0;   // position in Run::outputs
  std::uint8_t depth = 0;    // number of loops round both ends
  LoopIndex back = kNoLoop;  // set: the value is for the next iteration of this loop, and not routed on its last one
  std::vector<Target> targets;
};

struct OutputOf {
  NodeIndex node = kNoNode;
  std::uint8_t output = 0;
};

// An input of a node.
struct Slot {
  decl::PortRef port;
  // Number of loops that are round both this node and the first source of the value. Loops deeper than that re-use the
  // value in each iteration without a transfer, unless they loop it back.
  std::uint8_t level = 0;
  std::uint8_t back_levels = 0;  // bit d: the loop at depth d (1 = outermost) loops the value back
  bool external = false;         // the first source is outside of the walk
  bool stream = false;           // external, and cut into chunks
  std::int16_t entry = -1;       // index of the remembered first values, where an outer loop needs them again
  OutputOf first_from;           // no node: external
  std::array<OutputOf, kMaxLoopDepth + 1> back_from = {};  // [d]: what the loop at depth d loops back
};

enum class Export : std::uint8_t { none, last, all };  // Loop::outputs, Loop::accumulated

// An output of a node. Stage d = the value as seen inside the loop at depth d (0: outside of all loops).
struct Output {
  decl::PortRef port;
  std::uint8_t travel_depth = 0;  // the stage at which the port's travel rules apply
  std::array<EdgeIndex, kMaxLoopDepth + 1> forward = {kNoEdge, kNoEdge, kNoEdge, kNoEdge, kNoEdge};
  std::array<EdgeIndex, kMaxLoopDepth + 1> back = {kNoEdge, kNoEdge, kNoEdge, kNoEdge, kNoEdge};
  std::array<Export, kMaxLoopDepth + 1> exports = {};  // [d]: how the loop at depth d exports it
  std::array<std::int16_t, kMaxLoopDepth + 1> cache = {-1, -1, -1, -1,
                                                       -1};  // [d]: index of the value held by that loop
  bool keep = false;
  bool to_client = false;
  bool counts_token = false;
  std::vector<decl::PartitionRef> streams_to;
};

// Where the worker looks for a stop id after a step of this node.
struct NodeStop {
  const decl::TokenStop* rule = nullptr;
  std::uint8_t output = 0;   // position in Run::outputs of rule->token
  LoopIndex loop = kNoLoop;  // kNoLoop: a prefill walk, the stop ends the partition
};

struct Node {
  decl::ComponentRef component;
  const decl::Run* run = nullptr;
  std::uint16_t first_slot = 0;    // into CompiledWalk::slots; as many as run->inputs
  std::uint16_t first_output = 0;  // into CompiledWalk::outputs; as many as run->outputs
  std::uint64_t need = 0;          // bit per input
  std::uint64_t streams = 0;       // subset of need that comes in chunks
  std::uint8_t depth = 0;          // number of loops round it
  std::array<LoopIndex, kMaxLoopDepth> loops = {kNoLoop, kNoLoop, kNoLoop, kNoLoop};  // outermost first
  std::vector<NodeStop> stops;
  LoopIndex inner_loop() const { return depth ? loops[depth - 1u] : kNoLoop; }
};

struct CompiledLoop {
  const decl::Loop* spec = nullptr;
  LoopIndex parent = kNoLoop;
  std::uint8_t depth = 1;               // 1 = outermost
  std::vector<NodeIndex> direct_nodes;  // in no deeper loop
  std::vector<LoopIndex> direct_loops;
  std::vector<NodeIndex> all_nodes;  // at any depth below
  std::vector<LoopIndex> all_loops;  // at any depth below, without itself
  std::vector<OutputOf> exports;
};

// A port that a walk takes from outside.
struct ExternalInput {
  decl::PortRef port;
  EdgeIndex edge = kNoEdge;
  bool stream = false;  // FromClient, or Stream to the walk's partition
};

struct CompiledWalk {
  decl::WalkRef ref;
  decl::PartitionRef partition;
  std::vector<Node> nodes;
  std::vector<Slot> slots;
  std::vector<Output> outputs;
  std::vector<Edge> edges;
  std::vector<CompiledLoop> loops;
  std::vector<ExternalInput> inputs;
  std::vector<NodeIndex> top_nodes;  // in no loop
  std::vector<LoopIndex> top_loops;
  int num_cached = 0;   // values held by loops for their end
  int num_entries = 0;  // slots with remembered first values

  const Slot& slot(NodeIndex node, std::size_t input) const { return slots[nodes[node].first_slot + input]; }
  std::span<const Slot> slots_of(NodeIndex node) const {
    return {slots.data() + nodes[node].first_slot, nodes[node].run->inputs.size()};
  }
  std::span<const Output> outputs_of(NodeIndex node) const {
    return {outputs.data() + nodes[node].first_output, nodes[node].run->outputs.size()};
  }
  // kNoLoop when the walk has no loop of that name.
  LoopIndex find_loop(std::string_view name) const;
  const ExternalInput* find_input(decl::PortRef port) const;
};

// A stream into a partition.
struct StreamInput {
  decl::PortRef port;
  decl::ChunkPolicy policy;
  bool from_client = false;
  decl::PartitionRef producer;  // invalid when from_client
};

struct CompiledPartition {
  std::string name;
  decl::MakePlan plan;
  std::vector<decl::WalkRef> walks;
  std::vector<StreamInput> streams;           // into it
  std::vector<decl::PortRef> kept;            // Keep ports that one of its walks takes as an input
  std::vector<decl::PortRef> request_inputs;  // FromRequest ports that one of its walks takes as an input
  // Position in `streams`, or -1.
  int find_stream(decl::PortRef port) const;
};

// Thread: any. The Decl is borrowed and must outlive the CompiledModel.
class CompiledModel {
 public:
  // Calls Decl::validate() first: bad_model whose message lists all faults, one a line.
  static Result<CompiledModel> compile(const decl::Decl& model);

  const decl::Decl& declaration() const { return *decl_; }
  const std::vector<CompiledWalk>& walks() const { return walks_; }
  const CompiledWalk& at(decl::WalkRef walk) const { return walks_[walk.value]; }
  const std::vector<CompiledPartition>& partitions() const { return partitions_; }
  const CompiledPartition& at(decl::PartitionRef partition) const { return partitions_[partition.value]; }

 private:
  explicit CompiledModel(const decl::Decl& model) : decl_(&model) {}

  const decl::Decl* decl_;
  std::vector<CompiledWalk> walks_;
  std::vector<CompiledPartition> partitions_;
};

}  // namespace mstar::graph
