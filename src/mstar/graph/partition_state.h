// The state of one partition of one request on one worker: which nodes may run, what they read, where their values go.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mstar/graph/placement.h"
#include "mstar/graph/signals.h"
#include "mstar/graph/stream_buffer.h"

namespace mstar::graph {

enum class Accepted : std::uint8_t {
  now,     // in the slot of the running pass and iteration
  early,   // held for a later iteration or pass
  refused  // stale, repeated, unknown or not for this worker: dropped, and not an error
};

// One activation of a node. A ticket is never used twice in one PartitionState.
struct ReadyNode {
  NodeIndex node = kNoNode;
  std::uint32_t ticket = 0;
};

// Where an input of a step that runs ahead comes from.
struct AheadInput {
  NodeIndex from = kNoNode;  // a running node whose output isn't known yet; kNoNode: `values` are there
  std::uint8_t output = 0;
  const Values* values = nullptr;
  const StreamChunk* chunk = nullptr;  // set for a stream input; `values` are its items
};
struct AheadStep {
  NodeIndex node = kNoNode;
  std::uint32_t ticket = 0;
  LoopIndex new_iteration_of = kNoLoop;  // set: the step belongs to the next iteration of this loop
  LoopPath path;
  bool is_final = false;
  std::vector<AheadInput> inputs;  // one per Run::inputs; valid until confirm_ahead or rollback_ahead
  // Running nodes that must complete before the step is certain: those that feed it, and the others of the iteration
  // before it.
  std::vector<ReadyNode> waits_for;
};

struct StopSignals {
  std::span<const LoopIndex> loops = {};  // end after this iteration
  bool end_partition = false;             // a stop at prefill
  bool budget_spent = false;              // ... because of the token budget, not of a stop id
};

// What a completion causes. The worker sends it on in this order: stops, then all others, then `done`.
struct Effects {
  struct Peer {
    WorkerId worker;
    Delivery delivery;
  };
  struct Kept {
    KeptValue value;                // for the plan too, when on the host and small
    std::vector<WorkerId> readers;  // other workers that may read it later
  };
  struct Items {
    decl::PartitionRef to;
    WorkerId worker;  // may be this worker
    StreamItems items;
  };
  struct Client {
    decl::PortRef port;
    Values values;
  };
  struct Stop {
    LoopStop stop;
    std::vector<WorkerId> peers;
  };
  std::vector<Stop> stops;
  std::vector<Peer> peers;
  std::vector<Kept> kept;  // with `done` only
  std::vector<Items> items;
  std::vector<Client> client;
  std::int64_t num_tokens = 0;  // counted by this completion
  std::optional<FragmentDone> done;

  void clear();  // keeps capacity
};

// Thread: the worker's owner thread. No call blocks; per completion the cost is below a microsecond and names are never
// looked up. Errors are for inputs from outside; anything late, repeated or unknown is refused softly.
class PartitionState {
 public:
  PartitionState(std::shared_ptr<const PlacedModel> placed, WorkerId self, decl::PartitionRef partition);
  PartitionState(PartitionState&&) noexcept;
  PartitionState& operator=(PartitionState&&) noexcept;
  ~PartitionState();

  // A FromRequest value for this partition, before the first start. Absent optional ones arrive as signals.
  void give_request_input(decl::PortRef port, Values values);

  // Arms the walk. invalid_request for a walk of another partition, a pass that does not grow, a cap < 1, a pass that
  // is still running, or a missing input that can't come any more. Work that is ready at once is in take_ready().
  Status start(StartPass start);

  // Routes a signal to the call that takes it. Removal is refused: the owner removes the state. Errors: those of
  // start().
  Result<Accepted> apply(Signal signal, Effects& effects);
  Accepted deliver(Delivery delivery);
  // An external input of the running pass by its port.
  Accepted deliver_input(decl::PortRef port, std::int32_t pass, Values values);
  Accepted deliver_kept(KeptValue value);
  Accepted push_stream(StreamItems items);
  Accepted finish_stream(const StreamEnd& end);
  // Idempotent; a stop for a later iteration or pass is held. May end the loop and the fragment: read `effects`.
  Accepted stop_loop(const LoopStop& stop, Effects& effects);

  // Nodes that became ready, first come first served; each is running from here until complete().
  std::size_t num_ready() const;
  std::optional<ReadyNode> take_ready();

  // Of a running node: one Values per Run::inputs, valid until its complete() or cancel().
  std::span<const Values> inputs(NodeIndex node) const;
  // Of a running node: leading items of a stream input that an earlier chunk held.
  int num_seen(NodeIndex node, std::size_t input) const;
  bool is_final(NodeIndex node) const;
  // Iterations of the loops round a node, now.
  LoopPath path(NodeIndex node) const;
  decl::WalkRef walk() const;  // invalid when no pass runs
  std::int32_t pass() const;
  const std::map<std::string, std::int64_t>& flags() const;
  bool is_current(ReadyNode node) const;

  // The node ran. `outputs`: one per Run::outputs (moved from), empty = not routed. `effects` is cleared first. False,
  // with no effects, for a ticket that a stop or cancel made void.
  bool complete(ReadyNode node, std::span<Values> outputs, const StopSignals& stops, Effects& effects);

  // --- running ahead
  // ----------------------------------------------------------------------------------------------------- Prepares the
  // next activation of `node` while the nodes that feed it run. Strict: every input must come from a running node, from
  // outside of the loop (unchanged by the iteration), or from a stream with a chunk. Never for an iteration past the
  // last one, never twice for a node.
  std::optional<AheadStep> begin_ahead(NodeIndex node);
  // After the producers' complete(): true when the node is in fact ready; it is then running under the step's ticket.
  // False: the step never happens, and is rolled back.
  bool confirm_ahead(NodeIndex node);
  // Forgets the step; a chunk that it looked at is kept for the next one.
  void rollback_ahead(NodeIndex node);

  // Barge-in: ends the pass here and now; running nodes become void. Kept values of earlier passes stay. `drop_streams`
  // also drops the items received so far. Returns the report for the conductor, nothing when no pass runs here.
  std::optional<FragmentDone> cancel(bool drop_streams);

  // Ask for the memory that taking, reading and completing a node will touch: first the state, a little later what it
  // points to.
  void prefetch() const;
  void prefetch_parts() const;

  // Values held in all places, for conservation checks. Cost: a walk over the state.
  std::size_t num_values() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mstar::graph
