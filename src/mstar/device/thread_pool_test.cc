#include "mstar/device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"

namespace mstar {
namespace {

TEST(ThreadPool, EachTileRunsOnceWhateverTheGap) {
  ThreadPool pool(4);
  for (int round = 0; round < 300; ++round) {
    const int num_tiles = 1 + round % 37;
    std::vector<std::atomic<int>> hits(num_tiles);
    pool.parallel_for(num_tiles, [&](std::int64_t tile, int thread) {
      ASSERT_LT(thread, 4);
      hits[tile].fetch_add(1);
    });
    for (auto& hit : hits) ASSERT_EQ(hit.load(), 1);
    if (round % 50 == 49) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // let the threads fall asleep
  }
}

TEST(ThreadPool, ConcurrentCallersAreServedInTurn) {
  ThreadPool pool(3);
  std::atomic<int> sum{0};
  std::vector<std::jthread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) pool.parallel_for(8, [&](std::int64_t, int) { sum.fetch_add(1); });
    });
  callers.clear();
  EXPECT_EQ(sum.load(), 4 * 50 * 8);
}

TEST(CpuPlan, AtLeastOneThreadAndTheOverrideWins) {
  EXPECT_GE(make_cpu_plan().num_threads, 1);
  EXPECT_EQ(make_cpu_plan(3).num_threads, 3);
}

TEST(Arena, MarkAndRewindReuseTheSameBytes) {
  alignas(256) std::byte memory[4096];
  Arena arena(memory, sizeof(memory));
  const auto mark = arena.mark();
  void* first = arena.take(100);
  arena.rewind(mark);
  EXPECT_EQ(arena.take(200), first);
  EXPECT_DEATH(arena.take(8192), "step arena");
}

TEST(CpuDevice, AllocatesAligned) {
  auto device = make_cpu_device();
  auto pointer = device->allocate(1000);
  ASSERT_TRUE(pointer);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*pointer) % 256, 0u);
  device->release(*pointer);
}

}  // namespace
}  // namespace mstar
