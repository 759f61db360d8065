// One rank's end of a group in step whose ranks are processes: what they say to each other goes over the sockets
// between them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/worker/step_group.h"
#include "mstar/worker/step_log_codec.h"

namespace mstar::apps {

// Thread: any, but for what says otherwise.
class ProcessGroup final : public worker::StepTransport {
 public:
  // Sends bytes of a StepMessage to a worker of the group; never waits. False when they cannot be sent.
  explicit ProcessGroup(std::function<bool(WorkerId, std::string)> send) : send_(std::move(send)) {}

  // From another worker's process. What comes before open() is kept.
  void receive(WorkerId from, std::string bytes);
  // The socket to another worker has closed.
  void on_gone(WorkerId worker);

  // Before open(), of a rank that follows: what the leader's communicator is to be met by. unavailable after the time.
  Result<std::string> wait_key(WorkerId leader, std::chrono::seconds timeout);
  // The same from the leader.
  Status send_key(const std::vector<WorkerId>& others, std::string key);
  // Once. `workers` by their rank in the group; `mesh` empty: nothing is computed together; it has
  // the own rank's ends.
  std::shared_ptr<worker::StepGroup> open(std::vector<WorkerId> workers, int rank,
                                          std::vector<const graph::CompiledModel*> models, RankMesh mesh);

  void log(const worker::LogEntry& entry) override;
  void acknowledge(const worker::Ack& ack) override;
  void end(const std::string& reason) override;

 private:
  void take(WorkerId from, const std::string& bytes);  // caller holds mutex_
  void send_to(WorkerId worker, const std::string& bytes);
  std::string name_of(WorkerId worker) const;

  const std::function<bool(WorkerId, std::string)> send_;
  std::mutex mutex_;  // guards the next four
  std::condition_variable came_;
  std::vector<std::pair<WorkerId, std::string>> early_;
  std::vector<WorkerId> gone_;
  std::vector<worker::StepReader> readers_;  // by rank
  std::shared_ptr<worker::StepGroup> group_;
  // Set by open(), and then constant:
  std::vector<WorkerId> workers_;
  int rank_ = 0;
  std::vector<const graph::CompiledModel*> models_;
};

}  // namespace mstar::apps
