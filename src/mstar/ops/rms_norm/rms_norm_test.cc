#include "mstar/ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

double exactly(const float* x, const std::vector<float>& weight, std::size_t i, double epsilon, double offset) {
  double squares = 0;
  for (std::size_t j = 0; j < weight.size(); ++j) squares += static_cast<double>(x[j]) * x[j];
  return x[i] / std::sqrt(squares / static_cast<double>(weight.size()) + epsilon) * (weight[i] + offset);
}

TEST(RmsNorm, MatchesDoubles) {
  on_every_target([&] {
    Host host(2);
    for (const std::int64_t d : {1, 7, 16, 33, 1283}) {
      auto x = random_floats(9 * (d + 3), 1, 3.0f), weight = random_floats(d, 2);
      TensorView rows(x.data(), DType::f32, {9, d});
      rows.strides[0] = d + 3;
      Guarded out(9, d, d + 2);
      ASSERT_TRUE(rms_norm(host.context(), {rows, vector(weight), 1e-5f, 1.0f, out.view()}));
      EXPECT_TRUE(out.guards_intact());
      for (std::int64_t r = 0; r < 9; ++r)
        for (std::int64_t i = 0; i < d; ++i)
          ASSERT_NEAR(out.at(r, i), exactly(x.data() + r * (d + 3), weight, static_cast<std::size_t>(i), 1e-5, 1.0),
                      4e-6);
    }
  });
}

// Heads of a projection, gates between them, are the rows that they are one by one: the same bits, also in place.
TEST(RmsNorm, HeadsAreRows) {
  on_every_target([&] {
    Host host(2);
    const std::int64_t tokens = 5, heads = 3, d = 33, width = heads * 2 * d + 4;
    auto x = random_floats(tokens * width, 1), weight = random_floats(d, 2);
    const auto view = [&](std::vector<float>& from) {
      TensorView out(from.data(), DType::f32, {tokens, heads, d});
      out.strides[0] = width;
      out.strides[1] = 2 * d;
      return out;
    };
    Guarded together(tokens, heads * d), apart(tokens, heads * d);
    TensorView out = together.view();
    out.shape = {tokens, heads, d};
    out.strides = {heads * d, d, 1};
    ASSERT_TRUE(rms_norm(host.context(), {view(x), vector(weight), 1e-6f, 0.0f, out}));
    for (std::int64_t head = 0; head < heads; ++head) {
      TensorView rows(x.data() + head * 2 * d, DType::f32, {tokens, d}), to = apart.view();
      rows.strides[0] = width;
      to.pointer = to.data<float>() + head * d;
      to.shape = {tokens, d};
      ASSERT_TRUE(rms_norm(host.context(), {rows, vector(weight), 1e-6f, 0.0f, to}));
    }
    EXPECT_TRUE(together.guards_intact());
    EXPECT_TRUE(together.equals(apart));
    const auto before = x;
    ASSERT_TRUE(rms_norm(host.context(), {view(x), vector(weight), 1e-6f, 0.0f, view(x)}));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(t * width + i);
        const bool in_head = i < heads * 2 * d && i % (2 * d) < d;
        ASSERT_EQ(x[at], in_head ? together.at(t, i / (2 * d) * d + i % (2 * d)) : before[at]);
      }
  });
}

// With a gate: the bits of the norm, then silu_mul.
TEST(RmsNorm, GateMultiplies) {
  on_every_target([&] {
    Host host(2);
    const std::int64_t tokens = 4, heads = 3, d = 21;
    auto x = random_floats(tokens * heads * d, 1), weight = random_floats(d, 2);
    auto gates = random_floats(tokens * (heads * d + 5), 3, 3.0f);
    TensorView gate(gates.data(), DType::f32, {tokens, heads, d});
    gate.strides = {heads * d + 5, d, 1};
    const TensorView rows(x.data(), DType::f32, {tokens, heads, d});
    const auto by_heads = [&](TensorView view) {
      view.shape = rows.shape;
      view.strides = rows.strides;
      return view;
    };
    Guarded at_once(tokens, heads * d), apart(tokens, heads * d);
    ASSERT_TRUE(rms_norm(host.context(), {rows, vector(weight), 1e-6f, 0.0f, by_heads(at_once.view()), gate}));
    ASSERT_TRUE(rms_norm(host.context(), {rows, vector(weight), 1e-6f, 0.0f, by_heads(apart.view())}));
    ASSERT_TRUE(silu_mul(host.context(), {gate, by_heads(apart.view()), by_heads(apart.view())}));
    EXPECT_TRUE(at_once.guards_intact());
    EXPECT_TRUE(at_once.equals(apart));
  });
}

TEST(RmsNorm, RefusesOtherDtypesAndShapes) {
  Host host(1);
  auto x = random_floats(6, 1), weight = random_floats(3, 2);
  Guarded out(2, 3);
  TensorView half = matrix(x, 2, 3);
  half.dtype = DType::bf16;
  EXPECT_EQ(rms_norm(host.context(), {half, vector(weight), 1e-6f, 0.0f, out.view()}).error().code, Code::internal);
  EXPECT_EQ(rms_norm(host.context(), {matrix(x, 3, 2), vector(weight), 1e-6f, 0.0f, out.view()}).error().code,
            Code::internal);
}

}  // namespace
}  // namespace mstar
