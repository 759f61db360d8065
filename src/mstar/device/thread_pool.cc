#include "mstar/device/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mstar {
namespace {

constexpr int kSpins = 4000;  // ~20-40 us: longer than the gap between two ops of a decode step

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Cores by the cgroup quota, or 0 when there is none.
int quota_cores() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0)
    return std::max(1, static_cast<int>(std::ceil(std::atof(quota.c_str()) / period)));
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double q = -1;
  if (v1_quota >> q && v1_period >> period && q > 0 && period > 0)
    return std::max(1, static_cast<int>(std::ceil(q / period)));
  return 0;
}

}  // namespace

CpuPlan make_cpu_plan(int wanted) {
  if (wanted > 0) return {wanted};
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                           : static_cast<int>(std::thread::hardware_concurrency());
  if (const int quota = quota_cores(); quota > 0) cores = std::min(cores, quota);
  return {std::max(1, cores)};
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(sleep_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::run(std::int64_t num_tiles, Call call, void* context) {
  std::lock_guard one_job(run_mutex_);
  job_ = {call, context, num_tiles};
  num_busy_.store(num_threads_ - 1, std::memory_order_relaxed);
  next_tile_.store(0, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(sleep_mutex_);
    wake_.notify_all();
  }
  for (std::int64_t tile; (tile = next_tile_.fetch_add(1, std::memory_order_relaxed)) < num_tiles;)
    call(context, tile, 0);
  // Every thread checks in once per job, so that none still holds this job when the next one is laid out.
  for (int spin = 0; num_busy_.load(std::memory_order_acquire) > 0; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread) {
  std::uint64_t seen = 0;
  while (true) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen && !stopping_.load(std::memory_order_relaxed)) {
      if (++spins < kSpins) {
        relax();
        continue;
      }
      std::unique_lock lock(sleep_mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_seq_cst) != seen || stopping_.load(); });
      num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (stopping_.load(std::memory_order_relaxed)) return;
    seen = epoch_.load(std::memory_order_acquire);
    const Job job = job_;
    for (std::int64_t tile; (tile = next_tile_.fetch_add(1, std::memory_order_relaxed)) < job.num_tiles;)
      job.call(job.context, tile, thread);
    num_busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace mstar
