// Workers in processes of their own, as the process that starts them sees it: they are started, spoken to, and started
// again when they die.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mstar/base/queue.h"
#include "mstar/base/shares.h"
#include "mstar/wire/channel.h"
#include "mstar/wire/process_messages.h"

namespace mstar::apps {

struct WorkerProcessOptions {
  std::string program = "/proc/self/exe";  // run as `mstar worker --fd 3`
  std::vector<wire::WorkerSetup> setups;   // one process each
  // Workers of these that one request may use both of: they get a socket to each other.
  std::set<std::pair<WorkerId, WorkerId>> links;
  // Shared memory for ranks in step that compute together: a descriptor. Empty: they need none.
  std::function<Result<int>(MeshSize)> make_group_memory = {};
  // From the processes' readers; must not block.
  std::function<void(wire::ToConductor)> to_conductor;
  std::function<void(WorkerId, wire::ToWorker)> to_worker;
  // Before a process that died is started again; doubled as long as it dies within a minute.
  std::chrono::milliseconds first_delay{100};
  std::chrono::milliseconds longest_delay{30000};
  // A ready process whose loop stands still for this long is killed and started again; 0: never.
  std::chrono::milliseconds hang_timeout{60000};
  // The same for one that is not ready yet, or loads again, and has loaded nothing more for this long; 0: never.
  std::chrono::milliseconds load_timeout{120000};
};

// Thread: any. A process that dies, or hangs and is killed, is reported as WorkerFailed{unavailable} after its last
// message; one that was never ready is not started again. Of ranks that work in step all are killed when one of them
// dies or says that their group has ended, and are started again together. None of them outlives this object, nor this
// process: they end when their socket does.
class WorkerProcesses {
 public:
  explicit WorkerProcesses(WorkerProcessOptions options);
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  // Starts all. unavailable when a process cannot be made; what happens later reaches the conductor.
  Status start();
  // False when there is no such process now and the conductor knows. A value that cannot be sent fails its request.
  bool send(WorkerId worker, wire::ToWorker message);
  // As last reported; gauges are 0 while there is no process.
  wire::WorkerStats stats(WorkerId worker) const;
  std::optional<pid_t> pid(WorkerId worker) const;
  std::int64_t num_restarts(WorkerId worker) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Child {
    wire::WorkerSetup setup;
    mutable std::mutex mutex;                // guards the next eleven
    std::unique_ptr<wire::Channel> channel;  // null: no process
    pid_t pid = -1;
    wire::WorkerStats stats;
    bool was_ready = false;         // in any of its lives
    bool is_ready = false;          // in this life
    bool is_dying = false;          // it has ended, and the conductor does not know yet
    bool reported_failure = false;  // in this life
    std::string fault;              // what was wrong with a frame of its
    std::int64_t num_restarts = 0;
    std::uint64_t num_turns = 0;  // of the worker's loop, and pieces that it has loaded, as last told
    int num_silent = 0;           // looks in a row that found it unchanged
    // Of the supervisor's thread:
    Clock::time_point started_at;
    std::optional<Clock::time_point> restart_at;
    int num_deaths = 0;       // in a row
    std::string killed_for;   // why this process was killed from here
    wire::Descriptor memory;  // of a leader: where its group meets
  };
  struct Closed {
    Child* child = nullptr;
  };
  struct GroupEnded {
    Child* child = nullptr;
    std::string reason;
  };
  struct Stop {};
  using Event = std::variant<Closed, GroupEnded, Stop>;

  Child* find(WorkerId worker) const;
  bool on_frame(Child& child, std::span<const std::byte> bytes);
  void supervise(std::promise<Status>& started);
  Status spawn(Child& child);
  Status connect(Child& child, Child& other);
  Status connect_all(Child& child);
  Status set_up(Child& child);
  Result<wire::Descriptor> memory_for(const Child& child);
  std::vector<Child*> members_of(const Child& child) const;
  void kill_others(const Child& child, const std::string& reason);
  void on_closed(Child& child);
  void start_again_later(Child& child);
  void restart_due();
  std::chrono::milliseconds look_period() const;
  int most_looks(std::chrono::milliseconds timeout) const;
  void look_for_hangs();
  void kill(Child& child, std::string reason);
  Clock::time_point next_turn() const;
  void end_all();

  WorkerProcessOptions options_;
  std::vector<std::unique_ptr<Child>> children_;
  Clock::time_point next_look_;  // of the supervisor's thread
  Queue<Event> events_;
  std::thread supervisor_;
};

}  // namespace mstar::apps
