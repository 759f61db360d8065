#include "mstar/ops/linear/fold_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

constexpr std::int64_t kRows = 3, kOutputs = 37, kInputs = 70;

struct Case {
  explicit Case(bool has_bias)
      : x(random_floats(kRows * kInputs, 1, 3.0f)),
        w(random_floats(kOutputs * kInputs, 2, 0.3f)),
        gains(random_floats(kInputs, 3)),
        shifts(random_floats(kInputs, 4)),
        bias(random_floats(has_bias ? kOutputs : 0, 5)) {
    for (float& value : x) value += 2.0f;  // a mean that is missed is seen
  }
  std::vector<float> x, w, gains, shifts, bias;
};

// What passed_norm.h says a product makes of rows that lack a layer norm.
TEST(FoldNorm, MakesALayerNormAndAProductOfSumsOverTheRows) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const bool has_bias : {true, false}) {
      Case c(has_bias);
      Host host(2);
      const auto weight = LinearWeight::pack(host.device(), LinearSource{matrix(c.w, kOutputs, kInputs)}, storage);
      ASSERT_TRUE(weight);
      const TensorView bias = has_bias ? vector(c.bias) : TensorView();
      Guarded folded(2, kOutputs, kOutputs + 3), normed(kRows, kInputs), expected(kRows, kOutputs),
          products(kRows, kOutputs), gained(kRows, kInputs);
      ASSERT_TRUE(fold_norm(host.context(), {.weight = &*weight,
                                             .gains = vector(c.gains),
                                             .shifts = vector(c.shifts),
                                             .bias = bias,
                                             .weighted_gains = folded.view().at(0),
                                             .folded_bias = folded.view().at(1)}));
      EXPECT_TRUE(folded.guards_intact());

      constexpr float kEpsilon = 1e-5f;
      ASSERT_TRUE(layer_norm(host.context(), {.x = matrix(c.x, kRows, kInputs),
                                              .weight = vector(c.gains),
                                              .bias = vector(c.shifts),
                                              .epsilon = kEpsilon,
                                              .out = normed.view()}));
      LinearArgs product;
      product.weight = &*weight;
      product.x = normed.view();
      product.bias = bias;
      product.out = expected.view();
      ASSERT_TRUE(linear(host.context(), product));
      for (std::int64_t m = 0; m < kRows; ++m)
        for (std::int64_t i = 0; i < kInputs; ++i)
          gained.set(m, i, c.x[static_cast<std::size_t>(m * kInputs + i)] * c.gains[static_cast<std::size_t>(i)]);
      product.x = gained.view();
      product.bias = {};
      product.out = products.view();
      ASSERT_TRUE(linear(host.context(), product));
      for (std::int64_t m = 0; m < kRows; ++m) {
        const float* const row = c.x.data() + m * kInputs;
        const float mean = std::accumulate(row, row + kInputs, 0.0f) / kInputs;
        const float squares = std::inner_product(row, row + kInputs, row, 0.0f) / kInputs;
        const float factor = 1.0f / std::sqrt(squares - mean * mean + kEpsilon);
        for (std::int64_t n = 0; n < kOutputs; ++n)
          EXPECT_NEAR(factor * (products.at(m, n) - mean * folded.at(0, n)) + folded.at(1, n), expected.at(m, n), 2e-5);
      }
    }
  }
}

TEST(FoldNorm, RefusesWhatDoesNotFit) {
  Case c(true);
  Host host;
  const auto weight = LinearWeight::pack(host.device(), LinearSource{matrix(c.w, kOutputs, kInputs)}, DType::f32);
  ASSERT_TRUE(weight);
  std::vector<float> gained(kOutputs), folded(kOutputs), less(kInputs - 1);
  FoldNormArgs args{.weight = &*weight,
                    .gains = vector(c.gains),
                    .shifts = vector(c.shifts),
                    .bias = vector(c.bias),
                    .weighted_gains = vector(gained),
                    .folded_bias = vector(folded)};
  EXPECT_TRUE(fold_norm(host.context(), args));
  args.gains = vector(less);
  EXPECT_FALSE(fold_norm(host.context(), args));
  args.gains = vector(c.gains);
  args.bias = vector(less);
  EXPECT_FALSE(fold_norm(host.context(), args));
  args.bias = {};
  args.weight = nullptr;
  EXPECT_FALSE(fold_norm(host.context(), args));
}

}  // namespace
}  // namespace mstar
