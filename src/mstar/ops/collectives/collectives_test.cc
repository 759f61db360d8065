#include "mstar/ops/collectives/collectives.h"

#include <gtest/gtest.h>

#include <thread>

#include "mstar/device/cpu/thread_communicator.h"
#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

template <class Body>
void on_ranks(int size, const Body& body) {
  auto group = make_thread_group(size);
  std::vector<std::thread> threads;
  for (auto& each : group)
    threads.emplace_back([&body, end = each.get()] {
      Host host(2);
      host.context().communicator = end;
      body(host.context());
    });
  for (std::thread& each : threads) each.join();
}

TEST(Collectives, SumsWhatTheRanksHold) {
  on_ranks(3, [](OpContext& ops) {
    EXPECT_EQ(ops.ranks().size, 3);
    std::vector<float> x(40, static_cast<float>(ops.ranks().rank + 1));
    EXPECT_TRUE(all_reduce(ops, matrix(x, 4, 10)));
    EXPECT_EQ(x, std::vector<float>(40, 6.0f));
  });
}

TEST(Collectives, AloneASumIsWhatItWas) {
  Host host;
  std::vector<float> x(4, 2.0f);
  EXPECT_TRUE(all_reduce(host.context(), vector(x)));
  EXPECT_EQ(x, std::vector<float>(4, 2.0f));
  TensorView apart = matrix(x, 2, 1);
  apart.strides[0] = 2;
  EXPECT_FALSE(all_reduce(host.context(), apart));
  EXPECT_FALSE(all_reduce(host.context(), TensorView(x.data(), DType::i32, {4})));
}

TEST(Collectives, GathersColumnsOfWhichTheLastRankHasFewer) {
  constexpr int kRows = 5, kWidth = 4;
  for (const int size : {1, 2, 3})
    for (const int missing : {0, 1, 3}) {
      const int columns = size * kWidth - missing;
      on_ranks(size, [&](OpContext& ops) {
        std::vector<float> parts(static_cast<std::size_t>(size * kRows * kWidth), -1);
        const TensorView view(parts.data(), DType::f32, {size, kRows, kWidth});
        const int rank = ops.ranks().rank;
        for (int row = 0; row < kRows; ++row)
          for (int c = 0; c < kWidth; ++c)
            view.at(rank).at(row).data<float>()[c] = static_cast<float>(100 * row + rank * kWidth + c);
        Guarded out(kRows, columns, columns + 3);
        EXPECT_TRUE(gather_columns(ops, {.parts = view, .out = out.view()}));
        EXPECT_TRUE(out.guards_intact());
        for (int row = 0; row < kRows; ++row)
          for (int c = 0; c < columns; ++c) EXPECT_EQ(out.at(row, c), static_cast<float>(100 * row + c));
      });
    }
}

TEST(Collectives, ShapesMustAgree) {
  Host host;
  std::vector<float> parts(12);
  Guarded out(3, 4), too_wide(3, 5), too_few(2, 4);
  const TensorView view(parts.data(), DType::f32, {1, 3, 4});
  EXPECT_TRUE(gather_columns(host.context(), {.parts = view, .out = out.view()}));
  EXPECT_FALSE(gather_columns(host.context(), {.parts = view, .out = too_wide.view()}));
  EXPECT_FALSE(gather_columns(host.context(), {.parts = view, .out = too_few.view()}));
  const TensorView two_ranks(parts.data(), DType::f32, {2, 3, 2});
  EXPECT_FALSE(gather_columns(host.context(), {.parts = two_ranks, .out = out.view()}));
}

TEST(Collectives, AnEndedGroupIsUnavailable) {
  on_ranks(2, [](OpContext& ops) {
    std::vector<float> x(8);
    if (ops.ranks().rank == 0) ops.communicator->abort("over");
    const Status summed = all_reduce(ops, vector(x));
    ASSERT_FALSE(summed);
    EXPECT_EQ(summed.error().code, Code::unavailable);
    Guarded out(1, 8);
    EXPECT_FALSE(gather_columns(ops, {.parts = TensorView(x.data(), DType::f32, {2, 1, 4}), .out = out.view()}));
  });
}

}  // namespace
}  // namespace mstar
