#include "mstar/worker/host_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

namespace mstar::worker {
namespace {

TEST(HostPool, RunsJobsBesideEachOther) {
  HostPool pool(2);
  std::promise<void> first, second;
  pool.submit([&] {
    first.set_value();
    second.get_future().wait();
  });
  first.get_future().wait();
  pool.submit([&] { second.set_value(); });
}

TEST(HostPool, DropsQueuedJobsWhenItGoes) {
  auto token = std::make_shared<int>(0);
  std::atomic<bool> ran{false};
  {
    std::promise<void> begun;  // outlives the job that sets it
    HostPool pool(1);
    pool.submit([&begun, queued = std::weak_ptr<int>(token)] {
      begun.set_value();
      // Ends only once the job behind it was dropped.
      while (!queued.expired()) std::this_thread::yield();
    });
    begun.get_future().wait();
    pool.submit([&ran, token = std::move(token)] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace mstar::worker
