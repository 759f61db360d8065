#include "mstar/conductor/replica_loads.h"

#include <gmock/gmock.h>

#include <set>

namespace mstar::conductor {
namespace {

TEST(ReplicaLoads, KnowsItsWorkers) {
  const std::vector<WorkerId> workers = {WorkerId(5), WorkerId(2)};
  const ReplicaLoads loads(workers);
  EXPECT_EQ(loads.find(WorkerId(5)), 0u);
  EXPECT_EQ(loads.find(WorkerId(2)), 1u);
  EXPECT_FALSE(loads.find(WorkerId(3)));
  EXPECT_FALSE(loads.find(WorkerId(1000)));
  EXPECT_FALSE(loads.any_takes());
  EXPECT_FALSE(loads.takes(0));
}

// Beside a plain list of loads, in seeded orders of requests that come and go and replicas that drain.
TEST(ReplicaLoads, DrawsFromTheLeastLoadedAndFromAllThatTakeRequests) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const std::size_t count = 1 + random() % 7;
    std::vector<WorkerId> workers;
    for (std::size_t i = 0; i < count; ++i) workers.emplace_back(static_cast<std::uint32_t>(i + 1));
    ReplicaLoads loads(workers);
    std::vector<int> plain(count);
    std::vector<bool> takes(count);
    for (int turn = 0; turn < 2000; ++turn) {
      const std::size_t which = random() % count;
      switch (random() % 5) {
        case 0:
        case 1:
          loads.add(which);  // also of one that drains: it was chosen before
          ++plain[which];
          break;
        case 2:
        case 3:
          if (plain[which] == 0) break;
          loads.remove(which);
          --plain[which];
          break;
        default:
          takes[which] = random() % 3 > 0;
          loads.set_takes(which, takes[which]);
      }
      std::set<std::size_t> any, least;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(loads.load(i), plain[i]);
        ASSERT_EQ(loads.takes(i), takes[i]);
        if (takes[i]) any.insert(i);
      }
      for (const std::size_t i : any)
        if (least.empty() || plain[i] < plain[*least.begin()]) {
          least = {i};
        } else if (plain[i] == plain[*least.begin()]) {
          least.insert(i);
        }
      ASSERT_EQ(loads.any_takes(), !any.empty());
      if (any.empty()) continue;
      ASSERT_EQ(loads.least(), plain[*least.begin()]);
      ASSERT_THAT(any, testing::Contains(loads.draw_any(random)));
      ASSERT_THAT(least, testing::Contains(loads.draw_least(random)));
    }
  }
}

TEST(ReplicaLoads, TiesAreDrawnAtRandom) {
  const std::vector<WorkerId> workers = {WorkerId(1), WorkerId(2), WorkerId(3), WorkerId(4)};
  ReplicaLoads loads(workers);
  for (std::size_t i = 0; i < 4; ++i) loads.set_takes(i, true);
  loads.add(2);
  std::mt19937_64 random(1);
  std::vector<int> least(4), any(4);
  for (int i = 0; i < 4000; ++i) {
    ++least[loads.draw_least(random)];
    ++any[loads.draw_any(random)];
  }
  EXPECT_EQ(least[2], 0);
  for (const std::size_t i : {0, 1, 3}) EXPECT_NEAR(least[i], 4000 / 3, 200);
  for (const int each : any) EXPECT_NEAR(each, 1000, 200);
}

}  // namespace
}  // namespace mstar::conductor
