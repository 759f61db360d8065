#include "mstar/engine/lease.h"

#include <gtest/gtest.h>

namespace mstar::engine {
namespace {

const decl::WalkRef kDecode(1), kPrefill(2);

Bucket decode(int rows) { return {kDecode, rows, rows, 0}; }

TEST(BucketTable, TakesTheSmallestThatHoldsTheStep) {
  const BucketTable table({decode(32), decode(1), decode(8), decode(2), decode(4), decode(16)});
  const auto rows_for = [&](int rows) {
    const auto found = table.find(decode(rows));
    return found ? table.at(*found).rows : 0;
  };
  const int expected[] = {1, 2, 4, 4, 8, 8, 8, 8, 16};
  for (int rows = 1; rows <= 9; ++rows) EXPECT_EQ(rows_for(rows), expected[rows - 1]) << rows;
  EXPECT_EQ(rows_for(17), 32);
  EXPECT_EQ(rows_for(32), 32);
  EXPECT_EQ(rows_for(33), 0);
}

TEST(BucketTable, KeysOnWalkAndShape) {
  const BucketTable table({{kDecode, 4, 4, 7}, {kPrefill, 4, 4, 7}, {decl::WalkRef(), 8, 8, 9}});
  EXPECT_EQ(table.find({kDecode, 3, 3, 7}), 0);
  EXPECT_EQ(table.find({kPrefill, 3, 3, 7}), 1);
  EXPECT_FALSE(table.find({kDecode, 3, 3, 8}));
  EXPECT_FALSE(table.find({decl::WalkRef(5), 3, 3, 7}));
  EXPECT_EQ(table.find({decl::WalkRef(5), 3, 3, 9}), 2);  // a bucket of no walk takes any
  EXPECT_FALSE(BucketTable().find(decode(1)));
}

TEST(BucketTable, PackedBucketsHoldFewerRowsAndTokens) {
  const BucketTable table(
      {{kPrefill, 4, 16, 0, 1}, {kPrefill, 4, 64, 0, 1}, {kPrefill, 4, 256, 0, 1}, {kPrefill, 4, 4, 0, 0}});
  const auto find = [&](int rows, int tokens) { return table.find({kPrefill, rows, tokens, 0, 1}).value_or(-1); };
  EXPECT_EQ(find(1, 16), 0);
  EXPECT_EQ(find(4, 17), 1) << "spare tokens need no row";
  EXPECT_EQ(find(3, 65), 2);
  EXPECT_EQ(find(5, 64), -1);
  EXPECT_EQ(find(1, 257), -1);
  EXPECT_EQ(find(2, 3), 0) << "not the one of another capture";
}

TEST(PlanSlots, AlternatesAndHoldsTwo) {
  PlanSlots slots;
  EXPECT_EQ(slots.take(), 0);
  EXPECT_EQ(slots.take(), 1);
  EXPECT_FALSE(slots.take());
  slots.give_back(0);
  EXPECT_EQ(slots.take(), 0);
  slots.give_back(1);
  slots.give_back(0);
  EXPECT_EQ(slots.num_taken(), 0);
  // One step at a time still alternates: the slot that just ended rests.
  EXPECT_EQ(slots.take(), 1);
  slots.give_back(1);
  EXPECT_EQ(slots.take(), 0);
}

TEST(PlanSlotsDeathTest, ASlotComesBackOnce) {
  PlanSlots slots;
  ASSERT_EQ(slots.take(), 0);
  slots.give_back(0);
  EXPECT_DEATH(slots.give_back(0), "came back");
}

using Lease = RegionTable::Lease;

TEST(RegionTable, BatchedRegionsLeaseByRows) {
  const RegionTable table({.name = "dit", .rows = {1, 2, 4}});
  const int tokens[] = {100, 7, 9}, one_each[] = {1, 1, 1}, two[] = {1, 2, 1};
  EXPECT_EQ(table.find(tokens, one_each), (Lease{4, 0}));
  EXPECT_FALSE(table.find(tokens, two));  // a second segment has no place in a row of one
  const std::vector<int> five(5, 1);
  EXPECT_FALSE(table.find(five, five));
  EXPECT_FALSE(table.find({}, {}));
}

TEST(RegionTable, PackedRegionsLeaseByTokensToo) {
  const RegionTable table({.name = "vit", .rows = {1, 4}, .tokens = {256, 64, 1024}, .max_segments_per_request = 3});
  const int tokens[] = {100, 7}, segments[] = {3, 1}, too_many[] = {4, 1};
  EXPECT_EQ(table.find(tokens, segments), (Lease{4, 256}));
  EXPECT_FALSE(table.find(tokens, too_many));
  const int huge[] = {1000, 25};
  EXPECT_FALSE(table.find(huge, segments));
}

// The step is one row, and all of its segments count against that row's limit.
TEST(RegionTable, OneRowPerStepCountsAllSegmentsOfTheStep) {
  const RegionTable table({.name = "vision",
                           .rows = {1},
                           .tokens = {64, 256},
                           .lease_before_step = true,
                           .one_row_per_step = true,
                           .max_segments_per_request = 4});
  const int tokens[] = {30, 20, 10}, segments[] = {2, 1, 1}, more[] = {2, 2, 1};
  EXPECT_EQ(table.find(tokens, segments), (Lease{1, 64}));
  EXPECT_FALSE(table.find(tokens, more));
  const int wide[] = {200, 30, 10};
  EXPECT_EQ(table.find(wide, segments), (Lease{1, 256}));
}

}  // namespace
}  // namespace mstar::engine
