// Ranks that work in step, as threads of one process: the leader's log to each follower, and their answers.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mstar/base/queue.h"
#include "mstar/decl/component.h"
#include "mstar/device/rank_mesh.h"
#include "mstar/worker/step_log.h"

namespace mstar::worker {

// Carries what a group's ranks say to each other where they share no queue. Thread: any; none of it waits.
class StepTransport {
 public:
  virtual ~StepTransport() = default;
  virtual void log(const LogEntry& entry) = 0;      // of the leader, to every follower
  virtual void acknowledge(const Ack& ack) = 0;     // of a follower, to the leader
  virtual void end(const std::string& reason) = 0;  // to every other rank
};

// Owners: the leader and its followers. Rank 0 of the group leads. Thread: any, but for what says otherwise.
//
// A group that has ended does nothing more: what waits for a rank that will not come gives `unavailable`, the leader
// refuses every row, and followers only give back what they hold.
class StepGroup {
 public:
  // How often the leader's state goes with the log: with every entry in builds with checks, else with every 64th.
#ifdef NDEBUG
  static constexpr std::uint64_t kEntriesPerState = 64;
#else
  static constexpr std::uint64_t kEntriesPerState = 1;
#endif

  // `mesh`: of as many ranks; empty where nothing is computed together.
  explicit StepGroup(int size, RankMesh mesh = {}, std::uint64_t entries_per_state = kEntriesPerState);
  int size() const { return static_cast<int>(followers_.size()) + 1; }
  int num_followers() const { return static_cast<int>(followers_.size()); }
  std::uint64_t entries_per_state() const { return entries_per_state_; }
  MeshEnds ends(int rank) const { return mesh_.ends(rank); }
  // Whether the ranks wait for each other within a step of the component.
  bool computes_together(const decl::DeviceComponent& component) const {
    return component.tensor_parallel && !mesh_.empty();
  }

  // What is said goes this way instead of straight into the queues, and arrives by receive(). Before the first entry;
  // null: the ranks share this object. It outlives the group.
  void set_transport(StepTransport* transport) { transport_ = transport; }
  void receive(int rank, LogEntry entry) { entries(rank).push(std::move(entry)); }
  void receive(Ack ack) { acks_.push(std::move(ack)); }

  // To every follower.
  void log(const LogEntry& entry);
  Queue<LogEntry>& entries(int rank) { return *followers_[static_cast<std::size_t>(rank) - 1]; }
  void acknowledge(Ack ack) { transport_ ? transport_->acknowledge(ack) : receive(std::move(ack)); }
  // Waits for the next answer; nothing when the followers have been told to stop. Thread: the leader's.
  std::optional<Ack> wait_ack();
  // For tests that play all ranks on one thread: called again and again by whoever waits for an answer.
  void set_pump(std::function<void()> pump) { pump_ = std::move(pump); }

  // The first reason stays, and is logged as an error. Whoever waits for another rank is woken.
  void end(const std::string& reason);
  // ok until the group has ended, or its communicators have; then unavailable.
  Status failure() const;
  // No entry is taken any more: followers end when they have read those that are there.
  void close();

 private:
  const RankMesh mesh_;
  StepTransport* transport_ = nullptr;
  const std::uint64_t entries_per_state_;
  std::vector<std::unique_ptr<Queue<LogEntry>>> followers_;
  Queue<Ack> acks_;
  std::vector<Ack> received_;  // and not given out; the leader's
  std::function<void()> pump_;
  mutable std::mutex mutex_;
  std::optional<std::string> ended_;
};

}  // namespace mstar::worker
