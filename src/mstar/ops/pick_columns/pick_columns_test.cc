#include "mstar/ops/pick_columns/pick_columns.h"

#include <gtest/gtest.h>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(PickColumns, PacksRangesAndPutsThemBack) {
  Host host(2);
  for (const std::int64_t num_rows : {0, 1, 7}) {
    std::vector<float> x(static_cast<std::size_t>(num_rows) * 12), back(x.size(), -1.0f), packed(x.size(), -1.0f);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    const std::vector<AxisRange> ranges = {{8, 10}, {1, 4}, {4, 4}, {11, 12}};
    const TensorView rows(x.data(), DType::f32, {num_rows, 12});
    TensorView part(packed.data(), DType::f32, {num_rows, 6});
    part.strides[0] = 7;  // rows that lie apart
    ASSERT_TRUE(pick_columns(host.context(), {.rows = rows, .ranges = ranges, .packed = part}));
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const float at = static_cast<float>(12 * row);
      const float* const got = packed.data() + 7 * row;
      EXPECT_EQ(std::vector<float>(got, got + 7),
                (std::vector<float>{at + 8, at + 9, at + 1, at + 2, at + 3, at + 11, -1}));
    }
    const TensorView to(back.data(), DType::f32, {num_rows, 12});
    ASSERT_TRUE(pick_columns(host.context(), {.rows = to, .ranges = ranges, .packed = part, .puts_back = true}));
    for (std::size_t i = 0; i < back.size(); ++i) {
      const bool is_picked = (i % 12 >= 1 && i % 12 < 4) || i % 12 == 8 || i % 12 == 9 || i % 12 == 11;
      EXPECT_EQ(back[i], is_picked ? x[i] : -1.0f) << i;
    }
  }
}

TEST(PickColumns, RefusesWhatDoesNotFit) {
  Host host;
  std::vector<float> x(8), packed(8);
  const TensorView rows(x.data(), DType::f32, {2, 4}), part(packed.data(), DType::f32, {2, 2});
  const std::vector<AxisRange> outside = {{3, 5}}, wide = {{0, 3}}, good = {{1, 3}};
  EXPECT_TRUE(pick_columns(host.context(), {.rows = rows, .ranges = good, .packed = part}));
  EXPECT_FALSE(pick_columns(host.context(), {.rows = rows, .ranges = outside, .packed = part}));
  EXPECT_FALSE(pick_columns(host.context(), {.rows = rows, .ranges = wide, .packed = part}));
  const TensorView bytes(packed.data(), DType::bf16, {2, 2});
  EXPECT_FALSE(pick_columns(host.context(), {.rows = rows, .ranges = good, .packed = bytes}));
}

}  // namespace
}  // namespace mstar
