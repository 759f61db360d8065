#include "mstar/tensor/tensor.h"

#include <gtest/gtest.h>

#include "mstar/device/cpu/cpu_device.h"

namespace mstar {
namespace {

TEST(TensorView, SlicesKeepStrides) {
  float data[24];
  for (int i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
  const TensorView view(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(view.at(1).at(2).data<float>()[3], 23.0f);
  EXPECT_EQ(view.slice(1, 2).data<float>()[0], 12.0f);
  EXPECT_TRUE(view.at(1).contiguous());
  EXPECT_EQ(view.reshaped({6, 4}).at(5).data<float>()[0], 20.0f);
  EXPECT_EQ(to_string(view.shape), "[2,3,4]");
}

TEST(Tensor, OwnsItsBuffer) {
  auto device = make_cpu_device();
  auto made = Tensor::allocate(*device, DType::bf16, {3, 5});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->bytes(), 30u);
  Tensor moved = std::move(*made);
  EXPECT_TRUE(moved);
  EXPECT_FALSE(*made);
}

}  // namespace
}  // namespace mstar
