// A rank of a group in step that decides nothing: it does what its leader's log says, with engines and pools of its
// own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mstar/worker/load_model.h"
#include "mstar/worker/replicated_state.h"
#include "mstar/worker/step_group.h"

namespace mstar::worker {

struct StepFollowerOptions {
  WorkerId id;
  int rank = 1;  // in the group
  Device* device = nullptr;
  ThreadPool* pool = nullptr;
  std::vector<WorkerModel> models;  // by their index in the deployment; all of their components are in_step
  std::shared_ptr<StepGroup> group;
  std::function<void(const wire::WorkerStats&)> on_stats = {};  // may be empty; called by the owner thread
};

// What it does follows from the log alone, never from when it reads it. Where it cannot follow (its state differs from
// the leader's, a library threw) it ends the group. Then it only gives back what it holds.
//
// Owner thread: its own, started by start(), or else the one that calls load() and replay_next(); stats(): any.
class StepFollower {
 public:
  StepFollower(StepFollowerOptions options, wire::Mesh& mesh);
  ~StepFollower();
  // bad_model, exhausted. Captures steps too, where the device does: with the other ranks of the group at the same
  // time.
  Status load();
  // load() on a thread of its own, which tells the conductor that it is ready and then reads the log.
  void start();
  // After start(): how loading went.
  Status wait_loaded();
  // Closes the group's log and waits for the thread. The leader has stopped. May be called again.
  void stop();
  // Does what the oldest entry says that has arrived; false when there is none, and statistics are up to date.
  bool replay_next();
  wire::WorkerStats stats() const;
  // Turns of the loop so far; an idle loop turns a few times a second. Thread: any.
  std::uint64_t num_turns() const { return num_turns_; }

 private:
  struct Lane {
    std::uint32_t model = 0;
    std::unique_ptr<engine::Engine> engine;
  };
  struct Running {  // a step
    engine::Engine* engine = nullptr;
    engine::StepPtr step;
  };
  void run();
  bool take_entries();
  void replay(LogEntry entry);
  void replay_ended(const LogAction& action);
  void give_up(const std::string& reason);
  void stop_following();
  Status on(const LogAdd& add);
  Status on(const LogRemove& remove);
  Status on(LogPrepare prepare);
  Status on(const LogAdvance& advance);
  Status on(const LogPromise& promise);
  Status on(const LogFinish& finish);
  Status on(const LogAbandon& abandon);
  Status on(const LogUndo& undo);
  Status on(const LogRelease& release);
  Status on(const LogUnload& unload);
  Status on(const LogLoad& load);
  Result<engine::RowInputs> inputs_of(LogPrepare::Row row) const;
  Result<engine::Engine*> engine_of(LaneKey lane);
  Result<Running*> running(std::uint64_t step);
  void keep_values(std::uint64_t step, const std::vector<engine::RowResult>& results);
  void drop_steps();
  void publish_stats();

  StepFollowerOptions options_;
  wire::Mesh& mesh_;
  std::shared_ptr<engine::BufferPool> buffers_;
  std::vector<engine::ResourceSet> resources_;  // by model
  std::map<LaneKey, Lane> lanes_;
  std::map<std::uint64_t, Running> steps_;
  std::map<ValueName, Value> values_;
  std::set<RequestId> requests_;
  ReplicatedState state_;
  std::vector<LogEntry> taken_;  // and not replayed, from next_ on
  std::size_t next_ = 0;
  bool ended_ = false;
  std::atomic<std::uint64_t> num_turns_{0};
  bool stats_stale_ = false;
  std::int64_t stats_at_us_ = 0;
  mutable std::mutex stats_mutex_;
  wire::WorkerStats stats_;
  std::promise<Status> loaded_;
  std::thread thread_;
};

}  // namespace mstar::worker
