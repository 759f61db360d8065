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

}  // namespace
}  // namespace mstar
