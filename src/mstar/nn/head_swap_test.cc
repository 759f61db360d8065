#include "mstar/nn/head_swap.h"

#include <gtest/gtest.h>

#include <thread>

#include "mstar/device/cpu/thread_communicator.h"
#include "mstar/nn/shards.h"
#include "mstar/ops/op_test_support.h"

namespace mstar::nn {
namespace {

using namespace op_test;

template <class Body>
void on_ranks(int size, const Body& body) {
  auto group = make_thread_group(size);
  std::vector<std::thread> threads;
  for (auto& each : group)
    threads.emplace_back([&body, end = each.get(), size] {
      Host host;
      if (size > 1) host.context().sequence = end;
      body(host.context(), Ranks{end->rank(), size});
    });
  for (std::thread& each : threads) each.join();
}

TEST(RowSplit, EveryRankHasARowOrAllHaveAll) {
  for (const int size : {1, 2, 3, 4, 9, 16, 20})
    for (std::int64_t rows = 0; rows < 900; ++rows) {
      std::int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const RowSplit split(rows, {rank, size});
        const AxisRange own = split.own();
        if (!split.is_split()) {
          EXPECT_EQ(own, (AxisRange{0, rows}));
          EXPECT_EQ(split.padded_rows(), rows);
          continue;
        }
        EXPECT_EQ(own.begin, next);
        EXPECT_GT(own.count(), 0) << rows << " over " << size;
        EXPECT_LE(own.count(), split.per_rank());
        EXPECT_EQ(split.padded_rows(), split.per_rank() * size);
        EXPECT_LE(split.padded_rows(), RowSplit::most_padded_rows(rows, {rank, size}));
        next = own.end;
      }
      const RowSplit first(rows, {0, size});
      EXPECT_EQ(next, first.is_split() ? rows : 0);
      EXPECT_EQ(first.is_split(), size > 1 && rows >= size * std::max(8, size)) << rows << " over " << size;
    }
}

TEST(RowSplit, RowsAreGathered) {
  for (const std::int64_t rows : {std::int64_t{5}, std::int64_t{24}, std::int64_t{31}})
    on_ranks(3, [&](OpContext& ops, Ranks ranks) {
      const RowSplit split(rows, ranks);
      std::vector<float> x(static_cast<std::size_t>(split.padded_rows()) * 2, -1.0f);
      for (std::int64_t i = 2 * split.own().begin; i < 2 * split.own().end; ++i)
        x[static_cast<std::size_t>(i)] = static_cast<float>(i);
      ASSERT_TRUE(gather_rows(ops, split, TensorView(x.data(), DType::f32, {split.padded_rows(), 2})));
      for (std::int64_t i = 0; i < 2 * rows; ++i) EXPECT_EQ(x[static_cast<std::size_t>(i)], static_cast<float>(i));
    });
}

// Four query heads of two numbers over one or two key heads; number c of row r is 100 r + c.
TEST(HeadSwap, RowsForHeadsAndBack) {
  constexpr int kDim = 2, kHeads = 4;
  for (const int size : {1, 2, 4})
    for (const int kv_heads : {1, 2})
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{15}, std::int64_t{16}, std::int64_t{33}}) {
        const int q_width = kHeads * kDim, kv_width = kv_heads * kDim, width = q_width + 2 * kv_width;
        on_ranks(size, [&](OpContext& ops, Ranks ranks) {
          const auto shared = share_heads(kHeads, kv_heads, ranks);
          ASSERT_TRUE(shared);
          const HeadSwap swap =
              swap_of_heads(*shared, {.unit = kDim, .kv_begin = q_width, .kv_width = kv_width}, kDim, ranks);
          const RowSplit split(rows, ranks);
          const AxisRange own = split.own();
          const auto mark = ops.arena.mark();
          const TensorView projection = ops.temporary(DType::f32, {own.count(), width});
          for (std::int64_t row = 0; row < own.count(); ++row)
            for (int c = 0; c < width; ++c)
              projection.at(row).data<float>()[c] = static_cast<float>(100 * (own.begin + row) + c);
          const auto heads = swap.to_heads(ops, projection, rows);
          ASSERT_TRUE(heads) << heads.error().message;
          const TensorView mixed = swap.room(ops, rows, q_width);
          const AxisRange q = shared->heads[static_cast<std::size_t>(ranks.rank)].scaled(kDim);
          const AxisRange kv = shared->kv_heads[static_cast<std::size_t>(ranks.rank)].scaled(kDim);
          ASSERT_EQ(heads->dim(0), rows);
          ASSERT_EQ(heads->dim(1), q.count() + 2 * kv.count());
          for (std::int64_t row = 0; row < rows; ++row) {
            const float* const got = heads->at(row).data<float>();
            for (std::int64_t c = 0; c < q.count(); ++c) {
              EXPECT_EQ(got[c], static_cast<float>(100 * row + q.begin + c));
              mixed.at(row).data<float>()[c] = got[c] + 0.5f;
            }
            for (std::int64_t c = 0; c < kv.count(); ++c) {
              EXPECT_EQ(got[q.count() + c], static_cast<float>(100 * row + q_width + kv.begin + c));
              EXPECT_EQ(got[q.count() + kv.count() + c],
                        static_cast<float>(100 * row + q_width + kv_width + kv.begin + c));
            }
          }
          const auto back = swap.to_rows(ops, mixed, q_width);
          ASSERT_TRUE(back) << back.error().message;
          ASSERT_EQ(back->dim(0), own.count());
          for (std::int64_t row = 0; row < own.count(); ++row)
            for (int c = 0; c < q_width; ++c)
              EXPECT_EQ(back->at(row).data<float>()[c], static_cast<float>(100 * (own.begin + row) + c) + 0.5f);
          ops.arena.rewind(mark);
        });
      }
}

TEST(HeadSwap, WhatDoesNotDivideIsSaid) {
  const auto heads = share_heads(6, 2, {0, 4});
  ASSERT_FALSE(heads);
  EXPECT_NE(heads.error().message.find("6 query heads do not divide over 4 ranks"), std::string::npos);
  EXPECT_FALSE(share_heads(6, 3, {0, 2}));
}

}  // namespace
}  // namespace mstar::nn
