#include "mstar/nn/residual.h"

#include <gtest/gtest.h>

#include "mstar/ops/op_test_support.h"

namespace mstar::nn {
namespace {

using namespace op_test;

constexpr int kDim = 24, kInner = 40;
constexpr std::int64_t kTokens = 3;

class ResidualTest : public testing::Test {
 protected:
  void SetUp() override {
    using enum weights::DummyWeight::Fill;
    const weights::DummyWeight stored[] = {{"a.weight", {kDim}},
                                           {"a.bias", {kDim}},
                                           {"b.weight", {kDim}},
                                           {"b.bias", {kDim}},
                                           {"up.weight", {kInner, kDim}},
                                           {"up.bias", {kInner}},
                                           {"down.weight", {kDim, kInner}},
                                           {"down.bias", {kDim}}};
    auto checkpoint = weights::Checkpoint::dummy("nowhere", stored, 1);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    auto map = weights::WeightMap::create(std::shared_ptr<const weights::Checkpoint>(std::move(*checkpoint)), {});
    ASSERT_TRUE(map) << map.error().message;
    const LoadContext context{.weights = *map, .device = host_.device(), .storage = DType::f32};
    auto a = LayerNorm::load(context, "a", kDim), b = LayerNorm::load(context, "b", kDim);
    auto up = Linear::load(context, "up", kInner, kDim), down = Linear::load(context, "down", kDim, kInner);
    ASSERT_TRUE(a && b && up && down);
    a_ = std::move(*a);
    b_ = std::move(*b);
    up_ = std::move(*up);
    down_ = std::move(*down);
  }

  Host host_{2};
  LayerNorm a_, b_;
  Linear up_, down_;
};

// Where nothing can be passed, whoever asks for a norm gets its own kernel's rows, of the stream as it is then.
TEST_F(ResidualTest, NormsTheStreamAsItIsWhereNothingIsPassed) {
  OpContext& ops = host_.context();
  ASSERT_TRUE(up_.fold(host_.device(), b_));
  std::vector<float> values = random_floats(kTokens * kDim, 2), by_hand = values;
  Guarded hidden(kTokens, kInner), expected(kTokens, kDim), normed(kTokens, kDim);
  const TensorView x = matrix(by_hand, kTokens, kDim);
  ASSERT_TRUE(a_.run(ops, x, normed.view()));
  ASSERT_TRUE(up_.run(ops, normed.view(), hidden.view()));
  ASSERT_TRUE(down_.run(ops, hidden.view(), x, Activation::none, x));
  ASSERT_TRUE(b_.run(ops, x, expected.view()));

  Residual stream(ops, matrix(values, kTokens, kDim));
  EXPECT_EQ(stream.tokens(), kTokens);
  ASSERT_TRUE(stream.norm(ops, a_));
  EXPECT_FALSE(stream.normed().squares.parts.pointer);
  ASSERT_TRUE(up_.run(ops, stream.normed(), hidden.view()));
  ASSERT_TRUE(stream.add(ops, down_, hidden.view(), {.product = &up_, .layer_norm = &b_}));
  ASSERT_TRUE(stream.norm(ops, b_));
  EXPECT_EQ(values, by_hand);
  const TensorView rows = stream.normed().rows;
  for (std::int64_t row = 0; row < kTokens; ++row)
    for (std::int64_t i = 0; i < kDim; ++i) EXPECT_EQ(rows.at(row).data<float>()[i], expected.at(row, i));
  EXPECT_LE(ops.arena.mark(), Residual::workspace_bytes(kTokens, kDim));
}

TEST_F(ResidualTest, FoldsANormIntoOneProduct) {
  const std::size_t before = up_.bytes();
  EXPECT_FALSE(up_.is_folded());
  ASSERT_TRUE(up_.fold(host_.device(), b_));
  EXPECT_TRUE(up_.is_folded());
  EXPECT_EQ(up_.bytes(), before + 2 * kInner * sizeof(float));
}

// Rows that lack a norm are no rows for a product that does not know it.
TEST_F(ResidualTest, RefusesRowsWhoseNormWasNotFolded) {
  Guarded x(kTokens, kDim), out(kTokens, kInner), sums(kTokens, 4);
  const LinearInput lacking(x.view(), {.parts = sums.view(), .width = kDim, .sums = sums.view()});
  const Status ran = up_.run(host_.context(), lacking, out.view());
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("not folded"), std::string::npos);
}

}  // namespace
}  // namespace mstar::nn
