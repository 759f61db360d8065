#include "mstar/ops/layer_norm/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"
#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(LayerNorm, MatchesDoublesAndKeepsBits) {
  on_every_target([&] {
    Host host(2), single(1);
    for (const std::int64_t d : {1, 7, 16, 33, 512, 1283}) {
      auto x = random_floats(9 * d, 1, 3.0f);
      for (float& value : x) value += 20.0f;
      auto weight = random_floats(d, 2), bias = random_floats(d, 3);
      Guarded out(9, d, d + 2), alone(1, d);
      ASSERT_TRUE(layer_norm(host.context(), {matrix(x, 9, d), vector(weight), vector(bias), 1e-5f, out.view()}));
      EXPECT_TRUE(out.guards_intact());
      for (std::int64_t row = 0; row < 9; ++row) {
        double mean = 0, variance = 0;
        for (std::int64_t i = 0; i < d; ++i) mean += x[static_cast<std::size_t>(row * d + i)] / static_cast<double>(d);
        for (std::int64_t i = 0; i < d; ++i)
          variance += std::pow(x[static_cast<std::size_t>(row * d + i)] - mean, 2) / static_cast<double>(d);
        for (std::int64_t i = 0; i < d; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double expected =
              (x[static_cast<std::size_t>(row * d + i)] - mean) / std::sqrt(variance + 1e-5) * weight[at] + bias[at];
          ASSERT_NEAR(out.at(row, i), expected, 2e-5) << d;
        }
        ASSERT_TRUE(layer_norm(single.context(), {matrix(x, 9, d).slice(row, row + 1), vector(weight), vector(bias),
                                                  1e-5f, alone.view()}));
        ASSERT_TRUE(alone.row_equals(0, out, row));
      }
    }
  });
}

TEST(RmsNorm, MatchesDoubles) {
  on_every_target([&] {
    Host host(2);
    for (const std::int64_t d : {1, 7, 64, 128, 1283}) {
      auto x = random_floats(5 * d, 1, 3.0f), weight = random_floats(d, 2);
      Guarded out(5, d, d + 2);
      ASSERT_TRUE(rms_norm(host.context(), {matrix(x, 5, d), vector(weight), 1e-6f, 1.0f, out.view()}));
      EXPECT_TRUE(out.guards_intact());
      for (std::int64_t row = 0; row < 5; ++row) {
        double squares = 0;
        for (std::int64_t i = 0; i < d; ++i)
          squares += std::pow(x[static_cast<std::size_t>(row * d + i)], 2) / static_cast<double>(d);
        for (std::int64_t i = 0; i < d; ++i)
          ASSERT_NEAR(out.at(row, i),
                      x[static_cast<std::size_t>(row * d + i)] / std::sqrt(squares + 1e-6) *
                          (weight[static_cast<std::size_t>(i)] + 1.0),
                      2e-5);
      }
    }
  });
}

}  // namespace
}  // namespace mstar
