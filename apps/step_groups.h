// Ranks that work in step as threads of this process: who follows whom, and how a group that has ended begins again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "mstar/base/queue.h"
#include "mstar/device/rank_mesh.h"
#include "mstar/worker/step_follower.h"
#include "mstar/worker/worker.h"

namespace mstar::apps {

struct StepGroupsOptions {
  // Of a new group on these ranks; empty where they compute nothing together.
  std::function<Result<RankMesh>(const std::vector<int>& ranks)> mesh;
  // To the conductor beside the mesh; must not block.
  std::function<void(wire::WorkerFailed)> report;
  // Before a group that has ended begins again; doubled as long as it ends within a minute.
  std::chrono::milliseconds first_delay{500};
  // So many ends in a row are the last one, until an operator asks for the leader again.
  int most_ends = 5;
};

// A group that ended is made anew: its followers end and others begin, with new communicators; the leader lets go once
// its requests are gone, and all load their weights again. The conductor hears of it by the leader's messages: failed,
// and ready when it has loaded. Worker 1 + r is rank r.
// Thread: build and destroy from one; what says so: any.
class StepGroups {
 public:
  StepGroups(StepGroupsOptions options, wire::Mesh& mesh);
  ~StepGroups();

  // The first of the ranks leads. No rank is in two groups. Errors of the communicators.
  Status add(const std::vector<int>& ranks);
  bool follows(int rank) const;
  // Of a rank that leads; null: it leads none. Thread: any.
  std::shared_ptr<worker::StepGroup> led_by(int rank) const;
  // What a rank that follows loads; it is started by start_followers().
  void set_follower(int rank, worker::StepFollowerOptions options);
  void set_leader(int rank, worker::Worker& leader);
  void start_followers();
  // After start_followers(): how loading went. Ends that come later begin their groups again.
  Status wait_loaded();
  // A rank could not start: no other one waits for it any more.
  void end_all(const std::string& reason);
  // Ends what begins groups again, and then the followers. Their leaders have stopped. May be called again.
  void stop();
  // From now on no group begins again. May be called again.
  void stop_supervisor();

  // The leader has said that it failed. Thread: any.
  void on_failed(WorkerId leader);
  // The leader has said that it is ready. Thread: any.
  void on_ready(WorkerId leader);
  // An operator asks for this worker. True: its group is not there and will begin, so nothing else is to be done.
  // Thread: any.
  bool on_asked(WorkerId worker);
  // Of a rank that follows, else nothing. Thread: any.
  std::optional<wire::WorkerStats> stats(WorkerId worker) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Standing : std::uint8_t { begins, runs, ended, given_up };
  struct Group {
    std::vector<int> ranks;
    std::shared_ptr<worker::StepGroup> group;                        // guarded by mutex_, like the next three
    std::map<int, std::shared_ptr<worker::StepFollower>> followers;  // by rank; owners: this and stats()
    // The one before. Its communicators' memory is freed when no rank is at work: that waits for what devices do.
    std::shared_ptr<worker::StepGroup> retired = {};
    Standing standing = Standing::runs;
    int num_ends = 0;                                // in a row
    std::optional<Clock::time_point> ready_at = {};  // of this life
    std::map<int, worker::StepFollowerOptions> follower_options;
    worker::Worker* leader = nullptr;
    // Of the supervisor's thread:
    std::optional<Clock::time_point> due = {};
  };
  struct Failed {
    Group* group = nullptr;
  };
  struct Asked {
    Group* group = nullptr;
  };
  struct Stop {};
  using Event = std::variant<Failed, Asked, Stop>;

  Group* find(int rank) const;
  void make_followers(Group& group);
  void supervise();
  void on_end(Group& group, const Status& reason);
  void begin(Group& group);
  Status try_begin(Group& group);
  static std::string name_of(const Group& group);

  StepGroupsOptions options_;
  wire::Mesh& mesh_;
  std::vector<std::unique_ptr<Group>> groups_;
  mutable std::mutex mutex_;
  Queue<Event> events_;
  std::thread supervisor_;
};

}  // namespace mstar::apps
