#include "mstar/engine/free_list.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>

namespace mstar::engine {
namespace {

TEST(FreeList, TakesTheSmallestHoleThatHasRoom) {
  FreeList list(10 * FreeList::kUnit);
  const auto a = list.take(3 * FreeList::kUnit), b = list.take(1), c = list.take(2 * FreeList::kUnit);
  ASSERT_TRUE(a && b && c);
  list.give_back(*a, 3 * FreeList::kUnit);  // holes of 3 and, at the end, 4
  EXPECT_EQ(list.take(3 * FreeList::kUnit), a);
  EXPECT_EQ(list.largest(), 4 * FreeList::kUnit);
  EXPECT_FALSE(list.take(5 * FreeList::kUnit));
  EXPECT_FALSE(list.take(0));
}

TEST(FreeList, OnlyWholeUnitsAreGiven) {
  FreeList list(2 * FreeList::kUnit - 1);
  EXPECT_TRUE(list.take(1));
  EXPECT_FALSE(list.take(1));
  EXPECT_FALSE(FreeList(FreeList::kUnit - 1).take(1));
}

TEST(FreeList, PartsNeverMeetAndAllOfItComesBack) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    constexpr std::size_t kBytes = 64 * FreeList::kUnit;
    FreeList list(kBytes);
    std::map<std::size_t, std::size_t> held;  // bytes by offset
    std::size_t sum = 0;
    for (int i = 0; i < 500; ++i) {
      if (random() % 2 && !held.empty()) {
        const auto each = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
        list.give_back(each->first, each->second);
        sum -= FreeList::rounded(each->second);
        held.erase(each);
        continue;
      }
      const std::size_t bytes = 1 + random() % (8 * FreeList::kUnit);
      const std::size_t largest = list.largest();
      const auto offset = list.take(bytes);
      ASSERT_EQ(offset.has_value(), FreeList::rounded(bytes) <= largest);
      if (!offset) continue;
      const auto next = held.lower_bound(*offset);
      ASSERT_TRUE(next == held.end() || *offset + FreeList::rounded(bytes) <= next->first);
      ASSERT_TRUE(next == held.begin() ||
                  std::prev(next)->first + FreeList::rounded(std::prev(next)->second) <= *offset);
      ASSERT_LE(*offset + bytes, kBytes);
      held.emplace(*offset, bytes);
      sum += FreeList::rounded(bytes);
    }
    ASSERT_LE(sum, kBytes);
    for (const auto& [offset, bytes] : held) list.give_back(offset, bytes);
    EXPECT_EQ(list.largest(), kBytes) << "seed " << seed;
  }
}

}  // namespace
}  // namespace mstar::engine
