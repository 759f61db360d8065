// The threads that run host components: tokenise, detokenise, media. Nothing on a device's step path waits for them.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "mstar/base/queue.h"

namespace mstar::worker {

// Where host components run. Thread: submit from any. Jobs of one caller may run at the same time and out of order.
class HostExecutor {
 public:
  virtual ~HostExecutor() = default;
  virtual void submit(std::function<void()> job) = 0;
};

// Jobs that have not begun when it goes are dropped; it waits for those that run.
class HostPool final : public HostExecutor {
 public:
  explicit HostPool(int num_threads);
  ~HostPool() override;
  void submit(std::function<void()> job) override { jobs_.push(std::move(job)); }

 private:
  Queue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace mstar::worker
