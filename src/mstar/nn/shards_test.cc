#include "mstar/nn/shards.h"

#include <gtest/gtest.h>

#include <thread>

#include "mstar/device/cpu/thread_communicator.h"
#include "mstar/nn/linear.h"
#include "mstar/ops/op_test_support.h"

namespace mstar::nn {
namespace {

using namespace op_test;

constexpr int kOutputs = 12, kInputs = 40;
constexpr std::int64_t kRows = 3;

std::shared_ptr<const weights::Checkpoint> checkpoint() {
  const weights::DummyWeight stored[] = {{"a.weight", {kOutputs, kInputs}}, {"a.bias", {kOutputs}}};
  auto made = weights::Checkpoint::dummy("nowhere", stored, 3);
  EXPECT_TRUE(made);
  return std::shared_ptr<const weights::Checkpoint>(std::move(*made));
}

// Runs body(context of the load, context of the ops) on each rank.
template <class Body>
void on_ranks(int size, const Body& body) {
  const auto stored = checkpoint();
  auto group = make_thread_group(size);
  std::vector<std::thread> threads;
  for (auto& each : group)
    threads.emplace_back([&body, &stored, end = each.get(), size] {
      Host host;
      if (size > 1) host.context().communicator = end;
      auto map = weights::WeightMap::create(stored, {});
      ASSERT_TRUE(map) << map.error().message;
      const LoadContext context{.weights = *map, .device = host.device(), .ranks = {end->rank(), size}};
      body(context, host.context());
    });
  for (std::thread& each : threads) each.join();
}

// What one rank alone makes of x and the residual.
Guarded whole(std::vector<float> x, const std::vector<float>& residual) {
  Guarded out(kRows, kOutputs);
  on_ranks(1, [&](const LoadContext& context, OpContext& ops) {
    const auto layer = Linear::load(context, "a", kOutputs, kInputs);
    ASSERT_TRUE(layer);
    EXPECT_FALSE(layer->sums_over_ranks());
    auto added = residual;
    ASSERT_TRUE(
        layer->run(ops, matrix(x, kRows, kInputs), out.view(), Activation::none, matrix(added, kRows, kOutputs)));
  });
  return out;
}

TEST(Shards, MessagesNameWhatDoesNotDivide) {
  const auto share = own_share("query heads", 9, {0, 2});
  ASSERT_FALSE(share);
  EXPECT_EQ(share.error().message, "9 query heads do not divide over 2 ranks");
  EXPECT_EQ(own_kv_heads(3, {0, 2}).error().message, "3 key heads do not divide over 2 ranks");
  EXPECT_FALSE(own_share("query heads", 0, {0, 2}));
  EXPECT_EQ(*own_share("query heads", 9, {2, 3}), (AxisRange{6, 9}));
  EXPECT_EQ(*own_kv_heads(2, {3, 4}), (AxisRange{1, 2}));
  EXPECT_TRUE(rows_cut({}, {{0, 1}}).is_whole());
  EXPECT_TRUE(columns_cut({}, {{0, 1}}).is_whole());
}

TEST(Shards, RowsOfALayerAreItsOutputs) {
  std::vector<float> x = random_floats(kRows * kInputs, 1);
  const std::vector<float> zeros(kRows * kOutputs);
  const Guarded wanted = whole(x, zeros);
  on_ranks(2, [&](const LoadContext& context, OpContext& ops) {
    // 2 + 4 outputs of each rank, as of a fused projection.
    const int first = 2 * context.ranks.rank, second = 4 + 4 * context.ranks.rank;
    const weights::Cut cut = rows_cut(context.ranks, {{first, first + 2}, {second, second + 4}});
    const auto layer = Linear::load(context, "a", kOutputs, kInputs, true, cut);
    ASSERT_TRUE(layer);
    Guarded out(kRows, 6);
    std::vector<float> own = x;
    ASSERT_TRUE(layer->run(ops, matrix(own, kRows, kInputs), out.view()));
    for (std::int64_t row = 0; row < kRows; ++row)
      for (int i = 0; i < 6; ++i)
        EXPECT_EQ(out.at(row, i), wanted.at(row, i < 2 ? first + i : second + i - 2)) << row << " " << i;
  });
}

// Bias and residual are added once, and every rank has the same bits.
TEST(Shards, ColumnsOfALayerAddUpOverTheRanks) {
  const std::vector<float> x = random_floats(kRows * kInputs, 1), residual = random_floats(kRows * kOutputs, 2);
  const Guarded wanted = whole(x, residual);
  for (const int size : {2, 4}) {
    std::vector<std::vector<float>> streams(static_cast<std::size_t>(size), residual);
    on_ranks(size, [&](const LoadContext& context, OpContext& ops) {
      const Ranks ranks = context.ranks;
      const AxisRange own = *own_share("inputs", kInputs, ranks);
      const auto layer = Linear::load(context, "a", kOutputs, kInputs, true, columns_cut(ranks, {own}));
      ASSERT_TRUE(layer);
      EXPECT_TRUE(layer->sums_over_ranks());
      std::vector<float> part;
      for (std::int64_t row = 0; row < kRows; ++row)
        part.insert(part.end(), x.begin() + row * kInputs + own.begin, x.begin() + row * kInputs + own.end);
      std::vector<float>& stream = streams[static_cast<std::size_t>(ranks.rank)];
      ASSERT_TRUE(layer->add(ops, matrix(part, kRows, own.count()), matrix(stream, kRows, kOutputs)));
      Guarded out(kRows, kOutputs);
      EXPECT_FALSE(layer->run(ops, matrix(part, kRows, own.count()), out.view(), Activation::gelu_tanh));
    });
    for (const std::vector<float>& stream : streams) {
      EXPECT_EQ(stream, streams[0]);
      for (std::int64_t row = 0; row < kRows; ++row)
        for (int i = 0; i < kOutputs; ++i)
          EXPECT_NEAR(stream[static_cast<std::size_t>(row * kOutputs + i)], wanted.at(row, i), 1e-5) << row << " " << i;
    }
  }
}

}  // namespace
}  // namespace mstar::nn
