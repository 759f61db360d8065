#include "mstar/base/shares.h"

#include <gtest/gtest.h>

namespace mstar {
namespace {

TEST(Shares, EvenSharesCoverAllOnce) {
  for (int size = 1; size <= 5; ++size)
    for (std::int64_t units = 0; units <= 20; ++units) {
      std::int64_t at = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto share = even_share(units, {rank, size});
        ASSERT_EQ(share.has_value(), units % size == 0);
        if (!share) continue;
        EXPECT_EQ(share->begin, at);
        EXPECT_EQ(share->count(), units / size);
        at = share->end;
      }
      EXPECT_TRUE(units % size != 0 || at == units);
    }
}

TEST(Shares, FewerUnitsThanRanksAreHeldBySeveral) {
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(shared_share(2, {rank, 8}), (AxisRange{rank / 4, rank / 4 + 1}));
  EXPECT_EQ(shared_share(1, {2, 3}), (AxisRange{0, 1}));
  EXPECT_EQ(shared_share(8, {1, 2}), (AxisRange{4, 8}));
  EXPECT_FALSE(shared_share(3, {0, 2}));
  EXPECT_FALSE(shared_share(2, {0, 3}));
  EXPECT_EQ(shared_share(0, {0, 3})->count(), 0);
}

TEST(Shares, UnevenSharesCoverAllOnce) {
  for (int size = 1; size <= 5; ++size)
    for (std::int64_t units = 0; units <= 20; ++units) {
      std::int64_t at = 0;
      for (int rank = 0; rank < size; ++rank) {
        const AxisRange share = uneven_share(units, {rank, size});
        EXPECT_EQ(share.begin, at);
        EXPECT_GE(share.count(), 0);
        EXPECT_LE(share.count(), uneven_share(units, {0, size}).count());
        at = share.end;
      }
      EXPECT_EQ(at, units);
    }
}

}  // namespace
}  // namespace mstar
