#include "mstar/worker/host_pool.h"

#include <utility>

namespace mstar::worker {

HostPool::HostPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

HostPool::~HostPool() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(jobs_);
    for (Sleeper* each : sleepers_) each->wake.notify_one();
  }
  dropped.clear();
  for (auto& thread : threads_) thread.join();
}

void HostPool::submit(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  jobs_.push_back(std::move(job));
  if (sleepers_.empty()) return;
  Sleeper& last = *sleepers_.back();
  sleepers_.pop_back();
  last.is_wanted = true;
  last.wake.notify_one();
}

void HostPool::work() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (jobs_.empty()) {
      Sleeper self;
      sleepers_.push_back(&self);
      self.wake.wait(lock, [&] { return self.is_wanted || closed_; });
      continue;
    }
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes before the thread sleeps
    lock.lock();
  }
}

}  // namespace mstar::worker
