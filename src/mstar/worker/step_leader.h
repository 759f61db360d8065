// The rank of a group in step that decides: what its lanes do is written down for the followers before it is done.
#pragma once

#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "mstar/engine/engine.h"
#include "mstar/worker/replicated_state.h"
#include "mstar/worker/step_group.h"

namespace mstar::worker {

// Every call does what engine::Engine's or engine::ResourceSet's call of its name does, on every rank of the group.
// Rows that another rank cannot run fail alike on all: where the ranks compute together, or where some of them failed a
// step that others ran, the group ends, and with it every row.
// Thread: the worker's.
class StepLeader {
 public:
  explicit StepLeader(std::shared_ptr<StepGroup> group) : group_(std::move(group)) {}
  // The group's components of a model, in the order of the models, before the first request.
  void add_model(std::uint32_t model, const decl::Decl& decl, const std::vector<decl::ComponentRef>& components,
                 const engine::ResourceSet& resources);
  bool leads(std::uint32_t model) const { return models_.count(model) != 0; }
  // ok until the group has ended.
  Status failure() const { return group_->failure(); }

  Status add_request(std::uint32_t model, RequestId request, const std::shared_ptr<const decl::RequestParams>& params,
                     engine::ResourceSet& resources);
  // Also forgets it in the followers' engines.
  void remove_request(std::uint32_t model, RequestId request, engine::ResourceSet& resources);
  engine::Engine::Prepared prepare(LaneKey lane, engine::Engine& engine, std::vector<engine::RowInputs> rows);
  Result<bool> advance(engine::Engine& engine, engine::Step& step);
  const std::vector<engine::RowResult>& promised(engine::Engine& engine, engine::Step& step);
  void drop(engine::Engine& engine, engine::Step& step, std::uint32_t tag);
  // Waits for the followers to have launched it.
  std::vector<engine::RowResult> finish(engine::Engine& engine, engine::StepPtr step);
  void abandon(engine::Engine& engine, engine::StepPtr step);
  void undo(LaneKey lane, engine::Engine& engine, RequestId request, const engine::Progress& progress);

  // The last call: the followers let go of all that they have loaded. No request is left.
  void unload() { write(LogUnload{}); }
  // Of a new leader of followers that have let go, before add_model(): they begin to load.
  void load() { write(LogLoad{}); }
  // Waits until they have; also where they capture together with this rank. Their first error ends the group.
  Status wait_loaded();

 private:
  struct Open {  // a step that has not ended
    const engine::Step* step = nullptr;
    std::uint64_t number = 0;
    int num_waited_for = 0;  // answers to come
    std::vector<Status> of_followers = {};
    std::vector<std::uint32_t> dropped = {};
  };
  struct Named {
    std::weak_ptr<const DeviceBuffer> value;
    ValueName name;
    bool is_known = false;  // to the followers
  };
  LogEntry next_entry();
  void write(LogAction action);
  Open& open(const engine::Step& step);
  Open take(const engine::Step& step);
  bool waits_for_others(const engine::RowInputs& row) const;
  LogPrepare::Row row_for_others(const engine::RowInputs& row) const;
  void name_values(std::uint64_t step, const std::vector<engine::RowResult>& results);
  void release_values();
  void wait_for_followers(const engine::Step& step);
  void compare_ends(const Open& open, const Status& own);

  std::shared_ptr<StepGroup> group_;
  std::set<std::uint32_t> models_;
  ReplicatedState state_;
  std::uint64_t num_entries_ = 0, num_steps_ = 0;
  std::vector<Open> open_;
  std::unordered_map<const DeviceBuffer*, Named> named_;
  std::vector<ValueName> lost_;  // of values that are gone and whose place others have taken
};

// What one lane's loop asks of its engine, alone or before a group.
class LaneSteps {
 public:
  LaneSteps() = default;
  // `leader` null: alone. Both outlive this.
  LaneSteps(LaneKey lane, engine::Engine& engine, StepLeader* leader)
      : lane_(lane), engine_(&engine), leader_(leader) {}
  engine::Engine::Prepared prepare(std::vector<engine::RowInputs> rows) const {
    return leader_ ? leader_->prepare(lane_, *engine_, std::move(rows)) : engine_->prepare(std::move(rows));
  }
  Result<bool> advance(engine::Step& step) const {
    return leader_ ? leader_->advance(*engine_, step) : engine_->advance(step);
  }
  const std::vector<engine::RowResult>& promised(engine::Step& step) const {
    return leader_ ? leader_->promised(*engine_, step) : engine_->promised(step);
  }
  void drop(engine::Step& step, std::uint32_t tag) const {
    leader_ ? leader_->drop(*engine_, step, tag) : engine_->drop(step, tag);
  }
  std::vector<engine::RowResult> finish(engine::StepPtr step) const {
    return leader_ ? leader_->finish(*engine_, std::move(step)) : engine_->finish(std::move(step));
  }
  // Waits for the device, and lets the step go without an end: what its rows hold goes with their requests.
  void abandon(engine::StepPtr step) const {
    if (leader_) return leader_->abandon(*engine_, std::move(step));
    engine_->wait(*step);
  }
  void undo(RequestId request, const engine::Progress& progress) const {
    leader_ ? leader_->undo(lane_, *engine_, request, progress) : engine_->undo(request, progress);
  }

 private:
  LaneKey lane_;
  engine::Engine* engine_ = nullptr;
  StepLeader* leader_ = nullptr;
};

}  // namespace mstar::worker
