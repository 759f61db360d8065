#include "mstar/device/rank_mesh.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace mstar {
namespace {

TEST(RankMesh, RowsHoldWeightsAndColumnsHaveRows) {
  const RankMesh mesh = RankMesh::of_threads({.tensor = 2, .sequence = 3});
  std::vector<std::thread> threads;
  std::vector<std::vector<int>> tensor(6, std::vector<int>(2)), sequence(6, std::vector<int>(3));
  for (int rank = 0; rank < 6; ++rank)
    threads.emplace_back([&, rank] {
      const MeshEnds ends = mesh.ends(rank);
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_EQ(ends.size(), (MeshSize{2, 3}));
      EXPECT_EQ(ends.all->rank(), rank);
      EXPECT_EQ(ends.all->size(), 6);
      EXPECT_TRUE(ends.tensor->all_gather(&rank, tensor[at].data(), sizeof rank, {}));
      EXPECT_TRUE(ends.sequence->all_gather(&rank, sequence[at].data(), sizeof rank, {}));
    });
  for (std::thread& each : threads) each.join();
  for (int rank = 0; rank < 6; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_EQ(tensor[at], (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(sequence[at], (std::vector<int>{rank % 2, rank % 2 + 2, rank % 2 + 4}));
  }
}

TEST(RankMesh, AnAxisAloneIsTheWholeGroup) {
  EXPECT_TRUE(RankMesh().ends(0).alone());
  EXPECT_TRUE(RankMesh::of_threads({1, 1}).ends(0).alone());
  const RankMesh tensor = RankMesh::of_threads({2, 1}), sequence = RankMesh::of_threads({1, 2});
  EXPECT_EQ(tensor.ends(1).tensor, tensor.ends(1).all);
  EXPECT_EQ(tensor.ends(1).sequence, nullptr);
  EXPECT_EQ(sequence.ends(1).sequence, sequence.ends(1).all);
  EXPECT_EQ(sequence.ends(1).tensor, nullptr);
}

TEST(RankMesh, AnAbortReachesEveryGroup) {
  const RankMesh mesh = RankMesh::of_threads({2, 2});
  EXPECT_TRUE(mesh.failure());
  mesh.abort("over");
  for (int rank = 0; rank < 4; ++rank) {
    const MeshEnds ends = mesh.ends(rank);
    for (const Communicator* const each : {ends.all, ends.tensor, ends.sequence}) EXPECT_FALSE(each->failure());
    EXPECT_FALSE(ends.failure());
  }
  EXPECT_FALSE(mesh.failure());
}

// A rank that ends its own groups reaches those of a rank that shares none with it but the whole's.
TEST(RankMesh, AGroupThatEndedIsSeenByAll) {
  const RankMesh mesh = RankMesh::of_threads({2, 2});
  mesh.ends(0).abort("failed on rank 0");
  EXPECT_FALSE(mesh.ends(3).failure());
}

TEST(RankMesh, WhatCannotBeMadeIsSaid) {
  const auto made =
      RankMesh::create({2, 2}, [](const std::vector<int>& ranks) -> Result<std::vector<std::unique_ptr<Communicator>>> {
        if (ranks == std::vector<int>{1, 3}) return unavailable("no more");
        return std::vector<std::unique_ptr<Communicator>>(ranks.size());
      });
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message, "no more");
}

}  // namespace
}  // namespace mstar
