#include "mstar/ops/linear/gated_linear.h"

#include <gtest/gtest.h>

#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(GatedLinear, IsLinearAndSiluMulBitForBit) {
  on_every_target([&] {
    for (const DType storage : {DType::f32, DType::bf16, DType::i8}) {
      for (const std::int64_t m : {1, 9, 40}) {
        const std::int64_t f = 37, k = 70;
        auto x = random_floats(m * k, 1), w = random_floats(2 * f * k, 2, 0.3f);
        std::vector<float> both(static_cast<std::size_t>(m * 2 * f));
        auto device = make_cpu_device();
        auto weight = LinearWeight::pack(*device, LinearSource{matrix(w, 2 * f, k), nullptr}, storage);
        ASSERT_TRUE(weight);
        Host host(2, gated_linear_workspace_bytes(*weight, m, 2));
        Guarded out(m, f, f + 3), expected(m, f, f + 3);
        ASSERT_TRUE(gated_linear(host.context(), {.x = matrix(x, m, k), .weight = &*weight, .out = out.view()}));
        EXPECT_EQ(host.context().arena.mark(), 0u);
        LinearArgs product;
        product.x = matrix(x, m, k);
        product.weight = &*weight;
        product.out = matrix(both, m, 2 * f);
        ASSERT_TRUE(linear(host.context(), product));
        TensorView gate = product.out, up = product.out;
        gate.shape = up.shape = {m, f};
        up.pointer = both.data() + f;
        ASSERT_TRUE(silu_mul(host.context(), {.gate = gate, .up = up, .out = expected.view()}));
        EXPECT_TRUE(out.equals(expected));
        EXPECT_TRUE(out.guards_intact());
      }
    }
  });
}

TEST(GatedLinear, RefusesWhatDoesNotFit) {
  Host host;
  auto x = random_floats(16, 1), w = random_floats(7 * 8, 2);
  const LinearWeight odd = *LinearWeight::pack(host.device(), LinearSource{matrix(w, 7, 8), nullptr}, DType::f32);
  const LinearWeight even = *LinearWeight::pack(host.device(), LinearSource{matrix(w, 6, 8), nullptr}, DType::f32);
  Guarded out(2, 3), wide(2, 6);
  EXPECT_FALSE(gated_linear(host.context(), {.x = matrix(x, 2, 8), .weight = &odd, .out = out.view()}));
  EXPECT_FALSE(gated_linear(host.context(), {.x = matrix(x, 2, 8), .weight = &even, .out = wide.view()}));
  EXPECT_FALSE(gated_linear(host.context(), {.x = matrix(x, 2, 7), .weight = &even, .out = out.view()}));
  EXPECT_FALSE(gated_linear(host.context(), {.x = matrix(x, 2, 8), .weight = nullptr, .out = out.view()}));
}

}  // namespace
}  // namespace mstar
