#include "mstar/ops/qkv_prepare/qkv_prepare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/attention/attention.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/op_test_support.h"
#include "mstar/ops/rope/rope.h"

namespace mstar {
namespace {

using namespace op_test;

constexpr std::int64_t kTokens = 7, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kPairs = 8;
constexpr std::int64_t kWidth = (2 * kHeads + 2 * kKvHeads) * kHeadDim + 3;

// A projection with a gate beside each head's query, and pages for two rows of 5 and 2 tokens.
struct Step {
  std::vector<float> in = random_floats(kTokens * kWidth, 1), q_weight = random_floats(kHeadDim, 2),
                     k_weight = random_floats(kHeadDim, 3), frequencies = random_floats(kPairs, 4);
  std::vector<float> keys = std::vector<float>(static_cast<std::size_t>(3 * 16 * kKvHeads * kHeadDim)), values = keys;
  std::vector<std::int32_t> offsets = {0, 5, 7}, lengths = {9, 2}, pages = {2, 1}, positions = {4, 5, 6, 7, 8, 0, 1};

  TensorView heads(std::int64_t begin, std::int64_t count, std::int64_t apart) {
    TensorView view(in.data() + begin, DType::f32, {kTokens, count, kHeadDim});
    view.strides = {kWidth, apart, 1};
    return view;
  }
  TensorView q() { return heads(0, kHeads, 2 * kHeadDim); }
  TensorView k() { return heads(2 * kHeads * kHeadDim, kKvHeads, kHeadDim); }
  TensorView v() { return heads((2 * kHeads + kKvHeads) * kHeadDim, kKvHeads, kHeadDim); }
  RaggedView rows() const { return {offsets.data(), 2, static_cast<int>(kTokens)}; }
  PagedKvView kv() {
    const Shape shape = {3, 16, kKvHeads, kHeadDim};
    return {TensorView(keys.data(), DType::f32, shape),
            TensorView(values.data(), DType::f32, shape),
            pages.data(),
            lengths.data(),
            1,
            16};
  }
  QkvPrepareArgs args(TensorView q_out) {
    return {.q = q(),
            .k = k(),
            .v = v(),
            .q_weight = vector(q_weight),
            .k_weight = vector(k_weight),
            .weight_offset = 1.0f,
            .positions = vector(positions),
            .inverse_frequencies = vector(frequencies),
            .rows = rows(),
            .kv = kv(),
            .q_out = q_out};
  }
};

// The norm and the rotation of one head in doubles.
std::vector<double> exactly(const float* x, const std::vector<float>& weight, const Step& step, std::int64_t token) {
  double squares = 0;
  for (std::int64_t i = 0; i < kHeadDim; ++i) squares += static_cast<double>(x[i]) * x[i];
  std::vector<double> out;
  for (std::int64_t i = 0; i < kHeadDim; ++i)
    out.push_back(x[i] / std::sqrt(squares / kHeadDim + 1e-6) * (weight[static_cast<std::size_t>(i)] + 1.0));
  for (std::size_t i = 0; i < kPairs; ++i) {
    const double angle = static_cast<float>(step.positions[static_cast<std::size_t>(token)]) * step.frequencies[i];
    const double a = out[i], b = out[i + kPairs];
    out[i] = a * std::cos(angle) - b * std::sin(angle);
    out[i + kPairs] = b * std::cos(angle) + a * std::sin(angle);
  }
  return out;
}

TEST(QkvPrepare, NormsTurnsAndStores) {
  Step step;
  const auto before = step.in;
  Host host(2);
  Guarded out(kTokens, kHeads * kHeadDim);
  TensorView q_out = out.view();
  q_out.shape = {kTokens, kHeads, kHeadDim};
  q_out.strides = {kHeads * kHeadDim, kHeadDim, 1};
  ASSERT_TRUE(qkv_prepare(host.context(), step.args(q_out)));
  EXPECT_TRUE(out.guards_intact());
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const auto expected = exactly(before.data() + t * kWidth + h * 2 * kHeadDim, step.q_weight, step, t);
      for (std::int64_t i = 0; i < kHeadDim; ++i)
        ASSERT_NEAR(out.at(t, h * kHeadDim + i), expected[static_cast<std::size_t>(i)], 4e-6);
    }
  }
  // The pages are those that kv_append makes of exact keys.
  Step plain;
  std::vector<float> k_expected;
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t h = 0; h < kKvHeads; ++h)
      for (const double x : exactly(before.data() + t * kWidth + (2 * kHeads + h) * kHeadDim, step.k_weight, step, t))
        k_expected.push_back(static_cast<float>(x));
  ASSERT_TRUE(
      kv_append(host.context(), {.keys = TensorView(k_expected.data(), DType::f32, {kTokens, kKvHeads, kHeadDim}),
                                 .values = plain.v(),
                                 .rows = plain.rows(),
                                 .kv = plain.kv()}));
  for (std::size_t i = 0; i < plain.keys.size(); ++i) ASSERT_NEAR(step.keys[i], plain.keys[i], 4e-6);
  EXPECT_EQ(step.values, plain.values);
}

TEST(QkvPrepare, WithoutNormsTurnsInPlace) {
  Step step, apart;
  Host host(1);
  QkvPrepareArgs args = step.args(step.q());
  args.q_weight = args.k_weight = {};
  ASSERT_TRUE(qkv_prepare(host.context(), args));
  for (const TensorView& x : {apart.q(), apart.k()})
    ASSERT_TRUE(rope(host.context(),
                     {.x = x, .positions = vector(apart.positions), .inverse_frequencies = vector(apart.frequencies)}));
  EXPECT_EQ(step.in, apart.in);
}

TEST(QkvPrepare, PairsFollowTheirAxes) {
  Step step, apart;
  Host host(1);
  std::vector<std::int32_t> pair_axes = {0, 1, 2, 0, 1, 2, 0, 0}, positions;
  for (int i = 0; i < 3 * kTokens; ++i) positions.push_back(i * 13 % 100);
  const TensorView on_axes(positions.data(), DType::i32, {3, kTokens});
  QkvPrepareArgs args = step.args(step.q());
  args.q_weight = args.k_weight = {};
  args.positions = on_axes;
  args.pair_axes = vector(pair_axes);
  ASSERT_TRUE(qkv_prepare(host.context(), args));
  for (const TensorView& x : {apart.q(), apart.k()})
    ASSERT_TRUE(rope(host.context(), {.x = x,
                                      .positions = on_axes,
                                      .inverse_frequencies = vector(apart.frequencies),
                                      .pair_axes = vector(pair_axes)}));
  EXPECT_EQ(step.in, apart.in);
  args.positions = vector(step.positions);
  EXPECT_EQ(qkv_prepare(host.context(), args).error().code, Code::internal);
}

TEST(QkvPrepare, RefusesWhatDoesNotFit) {
  Step step;
  Host host(1);
  QkvPrepareArgs args = step.args(step.q());
  args.q_weight = args.k_weight = {};
  args.q_out = step.heads(kHeadDim, kHeads, 2 * kHeadDim);
  EXPECT_EQ(qkv_prepare(host.context(), args).error().code, Code::internal);
  args = step.args(step.q());
  args.k_weight = {};
  EXPECT_EQ(qkv_prepare(host.context(), args).error().code, Code::internal);
  args = step.args(step.q());
  step.lengths[0] = 17;
  EXPECT_EQ(qkv_prepare(host.context(), args).error().code, Code::internal);
}

}  // namespace
}  // namespace mstar
