#include "mstar/ops/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(Rope, RotatesPairsAndLeavesTheRest) {
  const std::int64_t tokens = 19, heads = 3, d = 20, pairs = 8, stride = heads * d + 7;
  auto frequencies = random_floats(pairs, 1);
  for (float& f : frequencies) f = std::fabs(f);
  std::vector<std::int32_t> positions;
  for (int t = 0; t < tokens; ++t) positions.push_back(t * 37 % 1000);
  const auto x = random_floats(tokens * heads * d, 2);
  for (const bool interleaved : {false, true}) {
    Host host(2, rope_workspace_bytes(2 * pairs, 2));
    Guarded rotated(tokens, heads * d, stride);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < heads * d; ++i) rotated.set(t, i, x[static_cast<std::size_t>(t * heads * d + i)]);
    TensorView view(rotated.view().pointer, DType::f32, {tokens, heads, d});
    view.strides[0] = stride;
    ASSERT_TRUE(rope(host.context(), {view, vector(positions), vector(frequencies), interleaved, 1.5f}));
    EXPECT_TRUE(rotated.guards_intact());
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const float* from = x.data() + (t * heads + head) * d;
        for (std::int64_t i = 0; i < pairs; ++i) {
          const double angle =
              static_cast<float>(positions[static_cast<std::size_t>(t)]) * frequencies[static_cast<std::size_t>(i)];
          const std::int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + pairs;
          ASSERT_NEAR(rotated.at(t, head * d + first),
                      1.5 * (from[first] * std::cos(angle) - from[second] * std::sin(angle)), 2e-6);
          ASSERT_NEAR(rotated.at(t, head * d + second),
                      1.5 * (from[second] * std::cos(angle) + from[first] * std::sin(angle)), 2e-6);
        }
        for (std::int64_t i = 2 * pairs; i < d; ++i) ASSERT_EQ(rotated.at(t, head * d + i), from[i]);
      }
    }
  }
}

// Each pair turns by the position on its own axis, as if the token stood there on the one axis.
TEST(Rope, PairsFollowTheirAxes) {
  const std::int64_t tokens = 11, heads = 2, d = 20, pairs = 8, axes = 3;
  auto frequencies = random_floats(pairs, 1);
  for (float& f : frequencies) f = std::fabs(f);
  std::vector<std::int32_t> pair_axes = {0, 1, 2, 0, 1, 2, 0, 0}, positions;
  for (int i = 0; i < axes * tokens; ++i) positions.push_back(i * 37 % 1000);
  const auto x = random_floats(tokens * heads * d, 2);
  Host host(2, rope_workspace_bytes(2 * pairs, 2));
  for (const bool interleaved : {false, true}) {
    const auto turned = [&](TensorView at, TensorView axes_of_pairs) {
      auto out = x;
      EXPECT_TRUE(rope(host.context(), {.x = TensorView(out.data(), DType::f32, {tokens, heads, d}),
                                        .positions = at,
                                        .inverse_frequencies = vector(frequencies),
                                        .interleaved = interleaved,
                                        .pair_axes = axes_of_pairs}));
      return out;
    };
    const auto all = turned(TensorView(positions.data(), DType::i32, {axes, tokens}), vector(pair_axes));
    std::vector<std::vector<float>> along;
    for (std::int64_t axis = 0; axis < axes; ++axis)
      along.push_back(turned(TensorView(positions.data() + axis * tokens, DType::i32, {tokens}), {}));
    for (std::int64_t row = 0; row < tokens * heads; ++row)
      for (std::int64_t i = 0; i < d; ++i) {
        const std::int64_t pair = interleaved ? i / 2 : i % pairs;
        const auto axis = i < 2 * pairs ? static_cast<std::size_t>(pair_axes[static_cast<std::size_t>(pair)]) : 0;
        const auto at = static_cast<std::size_t>(row * d + i);
        ASSERT_EQ(all[at], along[axis][at]) << "row " << row << ", column " << i;
      }
  }
}

TEST(Rope, RefusesPositionsThatDoNotFitTheAxes) {
  std::vector<float> x(4 * 8), frequencies(4);
  std::vector<std::int32_t> positions(12), axes(4), few(3);
  Host host(1);
  const auto turn = [&](TensorView at, TensorView pair_axes) {
    return rope(host.context(), {.x = TensorView(x.data(), DType::f32, {4, 1, 8}),
                                 .positions = at,
                                 .inverse_frequencies = vector(frequencies),
                                 .pair_axes = pair_axes});
  };
  const TensorView flat(positions.data(), DType::i32, {4}), on_axes(positions.data(), DType::i32, {3, 4});
  EXPECT_TRUE(turn(on_axes, vector(axes)));
  EXPECT_EQ(turn(on_axes, {}).error().code, Code::internal);
  EXPECT_EQ(turn(flat, vector(axes)).error().code, Code::internal);
  EXPECT_EQ(turn(on_axes, vector(few)).error().code, Code::internal);
}

}  // namespace
}  // namespace mstar
