// The threads that run host components: tokenise, detokenise, media. Nothing on a device's step path waits for them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mstar::worker {

// Where host components run. Thread: submit from any. Jobs of one caller may run at the same time and out of order.
class HostExecutor {
 public:
  virtual ~HostExecutor() = default;
  virtual void submit(std::function<void()> job) = 0;
};

// Jobs that have not begun when it goes are dropped; it waits for those that run. Of the threads that sleep the one
// that worked last is woken: its core and its memory still know the work.
class HostPool final : public HostExecutor {
 public:
  explicit HostPool(int num_threads);
  ~HostPool() override;
  void submit(std::function<void()> job) override;

 private:
  struct Sleeper {
    std::condition_variable wake;
    bool is_wanted = false;
  };
  void work();

  std::mutex mutex_;  // guards the next three
  std::deque<std::function<void()>> jobs_;
  std::vector<Sleeper*> sleepers_;  // of the threads that wait, each on its own stack; not those that have been woken
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mstar::worker
