#include "mstar/worker/host_pool.h"

namespace mstar::worker {

HostPool::HostPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i)
    threads_.emplace_back([this] {
      while (auto job = jobs_.pop()) (*job)();
    });
}

HostPool::~HostPool() {
  jobs_.close();
  jobs_.take_all();
  for (auto& thread : threads_) thread.join();
}

}  // namespace mstar::worker
