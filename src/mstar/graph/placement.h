// Which worker runs what for a request, and the tables that follow from it. Made once per distinct placement, then
// shared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/base/result.h"
#include "mstar/graph/compiled.h"

namespace mstar::graph {

// (component, walk) -> worker: the replicas that one request was given. Compares equal for equal choices, so it can key
// a cache.
class RequestPlacement {
 public:
  RequestPlacement() = default;
  RequestPlacement(const CompiledModel& model, WorkerId all);
  void set(decl::ComponentRef component, decl::WalkRef walk, WorkerId worker);
  void set(decl::ComponentRef component, WorkerId worker);  // in every walk
  WorkerId at(decl::ComponentRef component, decl::WalkRef walk) const;
  // Row-major [component][walk], for the wire.
  const std::vector<WorkerId>& table() const { return table_; }
  static Result<RequestPlacement> from_table(const CompiledModel& model, std::vector<WorkerId> table);
  friend auto operator<=>(const RequestPlacement&, const RequestPlacement&) = default;

 private:
  std::size_t num_walks_ = 0;
  std::vector<WorkerId> table_;
};

// What one worker runs of one walk. Loops are replicated round it: each worker counts its own iterations.
struct Fragment {
  WorkerId worker;
  std::vector<NodeIndex> nodes;
  std::vector<bool> local;  // by node
  std::vector<std::uint16_t>
      loop_members;  // by loop: direct nodes and loops that have work here; 0 = the loop isn't here
  std::uint16_t top_members = 0;
};

// Whether it keeps anything of a request from one step to the next; plans over other resources do not.
bool keeps_state(const decl::ResourceSpec& spec);

// A resource, and the worker that has it while a walk runs.
struct StateUse {
  decl::ResourceRef resource;
  WorkerId worker;
};

// Thread: any; immutable.
class PlacedModel {
 public:
  // Fails (bad_model, naming the parts) when a split cannot keep the order of a walk: a stream read or written by two
  // workers, or a loop whose stop can't hold back a component on another worker. `model` is borrowed.
  static Result<std::shared_ptr<const PlacedModel>> place(const CompiledModel& model, RequestPlacement placement);

  const CompiledModel& model() const { return *model_; }
  const RequestPlacement& placement() const { return placement_; }
  WorkerId owner(decl::WalkRef walk, NodeIndex node) const;
  // One per worker that runs a part of the walk, by worker id.
  std::span<const Fragment> fragments(decl::WalkRef walk) const { return fragments_[walk.value]; }
  // nullptr when the worker runs nothing of the walk.
  const Fragment* fragment(decl::WalkRef walk, WorkerId worker) const;
  // Workers that run a part of any walk of the partition: those that hold state for it.
  std::span<const WorkerId> workers(decl::PartitionRef partition) const { return workers_[partition.value]; }
  // Workers other than the producer's that have a target of the edge.
  std::span<const WorkerId> edge_peers(decl::WalkRef walk, EdgeIndex edge) const {
    return edge_peers_[walk.value][edge];
  }
  // Workers that take `port` as an external input in some walk of the partition: receivers of kept and request values.
  std::vector<WorkerId> readers(decl::PartitionRef partition, decl::PortRef port) const;
  // The worker with the stream's buffer; invalid when no walk of the partition reads it.
  WorkerId stream_worker(decl::PartitionRef partition, decl::PortRef port) const;
  // What the walk uses of resources whose state must move with a request, because its walks use them on several
  // workers, each walk on one.
  std::span<const StateUse> moving_state(decl::WalkRef walk) const { return moving_state_[walk.value]; }
  // Workers beside `self` that run a part of the loop: receivers of its stops.
  std::vector<WorkerId> loop_peers(decl::WalkRef walk, LoopIndex loop, WorkerId self) const;

 private:
  PlacedModel(const CompiledModel& model, RequestPlacement placement)
      : model_(&model), placement_(std::move(placement)) {}
  void add_walk(const CompiledWalk& walk);
  void find_moving_state();
  std::vector<std::string> faults() const;
  void add_loop_faults(const CompiledWalk& walk, const CompiledLoop& loop, const std::string& who,
                       std::vector<std::string>& faults) const;

  const CompiledModel* model_;
  RequestPlacement placement_;
  std::vector<std::vector<Fragment>> fragments_;
  std::vector<std::vector<WorkerId>> workers_;
  std::vector<std::vector<std::vector<WorkerId>>> edge_peers_;
  std::vector<std::vector<StateUse>> moving_state_;    // by walk
  std::vector<std::vector<WorkerId>> stream_workers_;  // [partition][position in CompiledPartition::streams]
};

}  // namespace mstar::graph
