#include "mstar/worker/host_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

namespace mstar::worker {
namespace {

TEST(HostPool, RunsJobsBesideEachOther) {
  std::promise<void> first, second, done;
  const std::shared_future<void> after = second.get_future();
  HostPool pool(2);
  pool.submit([&] {
    first.set_value();
    after.wait();
    done.set_value();
  });
  first.get_future().wait();
  pool.submit([&] { second.set_value(); });
  done.get_future().wait();  // a pool that goes drops what is queued
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
