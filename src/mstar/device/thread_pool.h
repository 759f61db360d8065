// The one pool of CPU step threads of a process: ops split their work over it; host components do not use it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace mstar {

// How many threads compute, from affinity and the cgroup quota.
struct CpuPlan {
  int num_threads = 1;
};
// Cores in the affinity mask, cut by the cgroup v1 or v2 CPU quota (rounded up), at least 1. `wanted` > 0 overrides.
CpuPlan make_cpu_plan(int wanted = 0);

// parallel_for over tiles; the caller takes part. Threads spin a few microseconds and then sleep, so that a decode step
// of ~100 us ops does not pay a futex for each. Thread: parallel_for from one thread at a time per pool call site;
// concurrent callers are served one after another.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs body(tile, thread_index) for each tile in [0, num_tiles), thread_index in [0, num_threads). Which thread takes
  // which tile is not fixed, so a tile's result must not depend on it. Returns when all tiles are done.
  template <class Body>
  void parallel_for(std::int64_t num_tiles, Body&& body) {
    if (num_tiles <= 0) return;
    if (num_threads_ == 1 || num_tiles == 1) {
      for (std::int64_t tile = 0; tile < num_tiles; ++tile) body(tile, 0);
      return;
    }
    auto call = [](void* context, std::int64_t tile, int thread) {
      (*static_cast<std::remove_reference_t<Body>*>(context))(tile, thread);
    };
    run(num_tiles, call, const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, std::int64_t tile, int thread);
  struct Job {
    Call call = nullptr;
    void* context = nullptr;
    std::int64_t num_tiles = 0;
  };

  void run(std::int64_t num_tiles, Call call, void* context);
  void work(int thread);

  const int num_threads_;
  std::mutex run_mutex_;  // one job at a time
  Job job_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<std::int64_t> next_tile_{0};
  std::atomic<int> num_busy_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> num_sleeping_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace mstar
