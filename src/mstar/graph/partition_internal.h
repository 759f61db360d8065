// The inside of PartitionState: flat arrays over one walk's nodes, slots and loops.
#pragma once

#include "mstar/graph/partition_state.h"

namespace mstar::graph {

struct PartitionState::State {
  enum class Phase : std::uint8_t { idle, queued, running, done };
  struct NodeState {
    std::uint64_t present = 0;  // inputs that are in their slots
    std::uint32_t ticket = 0;
    Phase phase = Phase::idle;
    bool is_final = false;
  };
  // A step that was prepared before its inputs were known.
  struct AheadState {
    std::uint32_t ticket = 0;
    bool active = false;
    bool ready = false;  // its inputs came: only confirm_ahead is missing
  };
  struct SlotState {
    Values next;                    // for the next iteration of the node's innermost loop
    EdgeIndex next_edge = kNoEdge;  // what brought `next`; kNoEdge: nothing did
    int num_seen = 0;
  };
  struct Entry {
    std::array<Values, kMaxLoopDepth + 1> values;  // [d]: the value that loops deeper than d start from
    std::uint8_t levels = 0;                       // bit per d
  };
  struct Cached {
    Values values;
    bool set = false;
  };
  struct LoopState {
    std::int32_t iteration = 0;
    std::int32_t cap = 1;
    std::int32_t limit = 1;  // iterations that will run; a stop lowers it
    std::uint16_t remaining = 0;
    bool done = false;
    bool stopped = false;
  };
  struct Kept {
    decl::PortRef port;
    std::int32_t pass = 0;
    Values values;
  };
  struct WaitingKept {
    std::int32_t pass = 0;
    EdgeIndex edge = kNoEdge;
  };
  struct Produced {
    decl::PortRef port;
    std::int64_t base = 0;
    std::int64_t count = 0;
  };
  struct Reader {  // of a stream, in the walk that runs
    NodeIndex node = kNoNode;
    std::uint8_t slot = 0;
  };

  State(std::shared_ptr<const PlacedModel> placed_model, WorkerId own, decl::PartitionRef ref);

  // partition_state.cc
  Status check_start(const StartPass& start) const;
  void arm(const StartPass& start);
  void give_inputs(StartPass& start);
  Kept* find_kept(decl::PortRef port);
  FragmentDone report();
  void end_pass();

  // partition_signals.cc
  enum class Fit : std::uint8_t { now, next, later, never };
  Fit place(Delivery& delivery);  // moves from it when now or next
  Fit fit_stop(const LoopStop& stop) const;
  void lower_limit(const LoopStop& stop);
  void replay_early();

  // partition_flow.cc
  bool wants(const Edge& edge, const Target& target) const;
  void put(EdgeIndex edge, Values&& values);       // into the current slots of this worker's targets
  void put_next(EdgeIndex edge, Values&& values);  // into their next-iteration slots
  void check_ready(NodeIndex node);
  bool take_chunks(NodeIndex node);
  void route(NodeIndex node, std::uint8_t output, int depth, Values&& values, Effects& effects);
  void send(EdgeIndex edge, const LoopPath& path, Values&& values, Effects& effects);
  void travel(NodeIndex node, const Output& out, Values&& values, Effects& effects);
  void stop_after_this(NodeIndex node, LoopIndex loop, Effects& effects);
  void finish_member(LoopIndex loop, Effects& effects);
  void advance(LoopIndex loop);
  void next_iteration(NodeIndex node, int depth);
  void end_loop(LoopIndex loop, Effects& effects);
  void finish_fragment(Effects& effects);
  void leave(NodeIndex node);  // drops what the node won't read again
  LoopPath path_of(NodeIndex node, int depth) const;

  // partition_ahead.cc
  bool covers_same_iteration(NodeIndex node, AheadStep& step);
  bool covers_next_iteration(NodeIndex node, AheadStep& step);
  void wait_for(NodeIndex node, AheadStep& step) const;
  bool add_running(NodeIndex node, const OutputOf& from, AheadStep& step) const;
  bool add_constant(NodeIndex node, std::size_t input, AheadStep& step);
  bool add_chunk(NodeIndex node, std::size_t input, AheadStep& step);

  bool is_running(ReadyNode node) const;
  bool is_local(NodeIndex node) const { return fragment->local[node]; }
  Values& now(NodeIndex node, std::size_t input) { return current[walk->nodes[node].first_slot + input]; }
  SlotState& slot(NodeIndex node, std::size_t input) { return slots[walk->nodes[node].first_slot + input]; }

  std::shared_ptr<const PlacedModel> placed;
  const CompiledModel* model = nullptr;
  const CompiledPartition* partition = nullptr;
  WorkerId self;
  decl::PartitionRef partition_ref;

  // The running pass.
  const CompiledWalk* walk = nullptr;  // nullptr: none
  const Fragment* fragment = nullptr;
  std::int32_t pass = 0;  // the last one that was started
  std::map<std::string, std::int64_t> flags;
  std::vector<NodeState> nodes;
  std::vector<AheadState> ahead;
  std::vector<SlotState> slots;
  std::vector<Values> current;  // by slot: what the node reads; apart, so that a node's inputs are one span
  std::vector<Entry> entries;
  std::vector<Cached> cached;
  std::vector<LoopState> loops;
  std::vector<WaitingKept> waiting_kept;
  std::vector<Kept> written;          // Keep ports written in this pass
  std::vector<NodeIndex> written_by;  // by position in `written`: of two writers the later one in the walk wins
  std::vector<Produced> produced;
  std::vector<Reader> readers;  // by stream
  FragmentDone done;
  std::uint16_t top_remaining = 0;
  bool final_consumed = false;

  std::vector<ReadyNode> queue;  // from queue_head on; entries whose ticket is void are skipped
  std::size_t queue_head = 0;
  std::size_t num_ready = 0;
  std::uint32_t last_ticket = 0;

  // Across passes.
  std::vector<Kept> kept;
  std::vector<std::optional<StreamBuffer>>
      streams;  // by position in CompiledPartition::streams; those that are read here
  std::vector<Delivery> early;
  std::vector<LoopStop> early_stops;
};

}  // namespace mstar::graph
