#include "mstar/ops/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

double exactly(Activation activation, double x) {
  switch (activation) {
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

TEST(Elementwise, ActivationsAreExactOverTheWholeRange) {
  on_every_target([&] {
    Host host(2);
    std::vector<float> x;
    for (float v = -30.0f; v <= 30.0f; v += 0.0137f) x.push_back(v);
    for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-6f, 200.0f, -200.0f, 1e30f, -1e30f}) x.push_back(v);
    const auto n = static_cast<std::int64_t>(x.size());
    for (const Activation activation :
         {Activation::none, Activation::gelu_erf, Activation::gelu_tanh, Activation::silu}) {
      Guarded out(1, n);
      ASSERT_TRUE(activate(host.context(), {matrix(x, 1, n), activation, out.view()}));
      EXPECT_TRUE(out.guards_intact());
      for (std::int64_t i = 0; i < n; ++i) {
        const double expected = exactly(activation, x[static_cast<std::size_t>(i)]);
        // 1 + erf is within an ulp of 1, and x multiplies that.
        ASSERT_NEAR(out.at(0, i), expected,
                    4e-7 * std::max({1.0, std::fabs(expected), 0.5 * std::fabs(x[static_cast<std::size_t>(i)])}))
            << x[static_cast<std::size_t>(i)];
      }
    }
  });
}

TEST(Elementwise, AddsRowsOrOneRow) {
  on_every_target([&] {
    Host host(2);
    auto a = random_floats(5 * 19, 1), b = random_floats(5 * 19, 2);
    Guarded out(5, 19, 23), broadcast(5, 19);
    ASSERT_TRUE(add(host.context(), {matrix(a, 5, 19), matrix(b, 5, 19), out.view()}));
    ASSERT_TRUE(add(host.context(), {matrix(a, 5, 19), matrix(b, 5, 19).slice(2, 3), broadcast.view()}));
    EXPECT_TRUE(out.guards_intact());
    for (int r = 0; r < 5; ++r) {
      for (int i = 0; i < 19; ++i) {
        const auto at = static_cast<std::size_t>(r * 19 + i);
        EXPECT_EQ(out.at(r, i), a[at] + b[at]);
        EXPECT_EQ(broadcast.at(r, i), a[at] + b[static_cast<std::size_t>(2 * 19 + i)]);
      }
    }
  });
}

TEST(Elementwise, SiluMulReadsHalvesOfOneProjection) {
  on_every_target([&] {
    Host host(2);
    auto both = random_floats(3 * 38, 1);
    TensorView gate(both.data(), DType::f32, {3, 19}), up(both.data() + 19, DType::f32, {3, 19});
    gate.strides[0] = up.strides[0] = 38;
    Guarded out(3, 19);
    ASSERT_TRUE(silu_mul(host.context(), {gate, up, out.view()}));
    EXPECT_TRUE(out.guards_intact());
    for (int r = 0; r < 3; ++r)
      for (int i = 0; i < 19; ++i)
        EXPECT_NEAR(out.at(r, i),
                    exactly(Activation::silu, both[static_cast<std::size_t>(r * 38 + i)]) *
                        both[static_cast<std::size_t>(r * 38 + 19 + i)],
                    1e-6);
  });
}

TEST(Elementwise, SigmoidMulGates) {
  on_every_target([&] {
    Host host(2);
    auto both = random_floats(3 * 38, 1, 3.0f);
    TensorView gate(both.data(), DType::f32, {3, 19}), x(both.data() + 19, DType::f32, {3, 19});
    gate.strides[0] = x.strides[0] = 38;
    Guarded out(3, 19);
    ASSERT_TRUE(sigmoid_mul(host.context(), {gate, x, out.view()}));
    EXPECT_TRUE(out.guards_intact());
    for (int r = 0; r < 3; ++r)
      for (int i = 0; i < 19; ++i)
        EXPECT_NEAR(out.at(r, i),
                    both[static_cast<std::size_t>(r * 38 + 19 + i)] /
                        (1 + std::exp(-static_cast<double>(both[static_cast<std::size_t>(r * 38 + i)]))),
                    1e-6);
  });
}

TEST(Elementwise, SoftmaxSumsToOne) {
  on_every_target([&] {
    Host host(2);
    auto x = random_floats(4 * 1003, 1, 10.0f);
    Guarded out(4, 1003, 1010);
    ASSERT_TRUE(softmax(host.context(), {matrix(x, 4, 1003), out.view()}));
    EXPECT_TRUE(out.guards_intact());
    for (int r = 0; r < 4; ++r) {
      double sum = 0, largest = -INFINITY;
      for (int i = 0; i < 1003; ++i) largest = std::max<double>(largest, x[static_cast<std::size_t>(r * 1003 + i)]);
      for (int i = 0; i < 1003; ++i) sum += std::exp(x[static_cast<std::size_t>(r * 1003 + i)] - largest);
      for (int i = 0; i < 1003; ++i)
        ASSERT_NEAR(out.at(r, i), std::exp(x[static_cast<std::size_t>(r * 1003 + i)] - largest) / sum, 1e-6);
    }
  });
}

// A gate beside each head, as gated attention has them.
TEST(Elementwise, GatesOfHeadsLieApart) {
  on_every_target([&] {
    Host host(2);
    const std::int64_t tokens = 4, heads = 3, d = 21;
    auto in = random_floats(tokens * heads * 2 * d, 1, 3.0f), x = random_floats(tokens * heads * d, 2);
    TensorView gate(in.data() + d, DType::f32, {tokens, heads, d});
    gate.strides = {heads * 2 * d, 2 * d, 1};
    Guarded sigmoid(tokens, heads * d), silu(tokens, heads * d);
    const auto by_heads = [&](TensorView view) {
      view.shape = {tokens, heads, d};
      view.strides = {heads * d, d, 1};
      return view;
    };
    const TensorView values = by_heads(matrix(x, tokens, heads * d));
    ASSERT_TRUE(sigmoid_mul(host.context(), {gate, values, by_heads(sigmoid.view())}));
    ASSERT_TRUE(silu_mul(host.context(), {gate, values, by_heads(silu.view())}));
    EXPECT_TRUE(sigmoid.guards_intact() && silu.guards_intact());
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < heads * d; ++i) {
        const double g = in[static_cast<std::size_t>((t * heads + i / d) * 2 * d + d + i % d)];
        const double v = x[static_cast<std::size_t>(t * heads * d + i)] / (1 + std::exp(-g));
        ASSERT_NEAR(sigmoid.at(t, i), v, 1e-6);
        ASSERT_NEAR(silu.at(t, i), g * v, 4e-6);
      }
  });
}

}  // namespace
}  // namespace mstar
