// The threads that run host components: tokenise, detokenise, media. Nothing on a device's step path waits for them.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "mstar/base/queue.h"

namespace mstar::worker {

// Thread: submit from any. Jobs of one caller may run at the same time and out of order.
class HostPool {
 public:
  explicit HostPool(int num_threads);
  ~HostPool();
  void submit(std::function<void()> job) { jobs_.push(std::move(job)); }

 private:
  Queue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace mstar::worker
