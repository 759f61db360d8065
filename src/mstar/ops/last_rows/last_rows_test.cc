#include "mstar/ops/last_rows/last_rows.h"

#include <gtest/gtest.h>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

TEST(LastRows, TheLastTokenOfEachRow) {
  const auto device = make_cpu_device();
  Arena arena;
  OpContext ops{*device, {}, arena};
  std::vector<float> x = {0, 1, -9, 10, 11, -9, 20, 21, -9};  // three tokens of two, three apart
  TensorView view(x.data(), DType::f32, {3, 2});
  view.strides[0] = 3;
  const std::int32_t offsets[] = {0, 2, 2, 3};
  std::vector<float> out(6, 7.0f);
  ASSERT_TRUE(last_rows(ops, {.x = view,
                              .rows = {.offsets = offsets, .num_rows = 3, .num_tokens = 3},
                              .out = TensorView(out.data(), DType::f32, {3, 2})}));
  EXPECT_EQ(out, (std::vector<float>{10, 11, 0, 0, 20, 21}));
}

TEST(LastRows, ShapesMustAgree) {
  const auto device = make_cpu_device();
  Arena arena;
  OpContext ops{*device, {}, arena};
  std::vector<float> x(6), out(6);
  const std::int32_t offsets[] = {0, 3};
  const RaggedView rows{.offsets = offsets, .num_rows = 1, .num_tokens = 3};
  EXPECT_FALSE(last_rows(ops, {.x = TensorView(x.data(), DType::f32, {2, 3}),
                               .rows = rows,
                               .out = TensorView(out.data(), DType::f32, {1, 3})}));
  EXPECT_FALSE(last_rows(ops, {.x = TensorView(x.data(), DType::f32, {3, 2}),
                               .rows = rows,
                               .out = TensorView(out.data(), DType::f32, {2, 2})}));
}

}  // namespace
}  // namespace mstar
