#include "mstar/ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/linear/linear_cases.h"
#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

double activate_exactly(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu_erf:
      return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1.0 + std::exp(-x));
  }
  return x;
}

struct Problem {
  Problem(const LinearCase& c, DType dtype) : shape(c), storage(dtype) {
    x = random_floats(c.m * (c.k + 3), 1);
    w = random_floats(c.n * c.k, 2, 0.3f);
    bias = random_floats(c.n, 3);
    residual = random_floats(c.m * c.n, 4);
  }
  TensorView x_view(std::int64_t begin, std::int64_t end) {
    TensorView out(x.data() + begin * (shape.k + 3), DType::f32, {end - begin, shape.k});
    out.strides[0] = shape.k + 3;
    return out;
  }
  LinearWeight pack(Device& device) {
    auto packed = LinearWeight::pack(device, LinearSource{matrix(w, shape.n, shape.k), nullptr}, storage);
    EXPECT_TRUE(packed);
    return std::move(*packed);
  }
  LinearArgs args(const LinearWeight& weight, std::int64_t begin, std::int64_t end, Activation activation) {
    LinearArgs out;
    out.x = x_view(begin, end);
    out.weight = &weight;
    out.bias = vector(bias);
    out.residual = TensorView(residual.data() + begin * shape.n, DType::f32, {end - begin, shape.n});
    out.activation = activation;
    return out;
  }

  LinearCase shape;
  DType storage;
  std::vector<float> x, w, bias, residual;
};

// The numbers that the kernel really multiplies: the weight as stored, and for i8 the rounded row of x.
double exact_output(const Problem& p, const LinearWeight& weight, std::int64_t m, std::int64_t n, Activation activation,
                    double* magnitude) {
  std::vector<float> row(static_cast<std::size_t>(p.shape.k));
  weight.read_row(n, row.data());
  const float* x = p.x.data() + m * (p.shape.k + 3);
  float largest = 0;
  for (std::int64_t k = 0; k < p.shape.k; ++k) largest = std::max(largest, std::fabs(x[k]));
  double sum = 0;
  for (std::int64_t k = 0; k < p.shape.k; ++k) {
    const double value = p.storage == DType::i8 ? std::nearbyint(x[k] * (127.0f / largest)) * (largest / 127.0f) : x[k];
    sum += value * row[static_cast<std::size_t>(k)];
    *magnitude += std::fabs(value * row[static_cast<std::size_t>(k)]);
  }
  return activate_exactly(activation, sum + p.bias[static_cast<std::size_t>(n)]) +
         p.residual[static_cast<std::size_t>(m * p.shape.n + n)];
}

class LinearEveryDType : public testing::TestWithParam<DType> {};

TEST_P(LinearEveryDType, MatchesDoubles) {
  on_every_target([&] {
    int which = 0;
    for (const LinearCase& c : kSmallLinearCases) {
      Problem p(c, GetParam());
      auto device = make_cpu_device();
      const LinearWeight weight = p.pack(*device);
      Host host(2, linear_workspace_bytes(weight, c.m, 2));
      const auto activation = static_cast<Activation>(which++ % 4);
      Guarded out(c.m, c.n, c.n + 5);
      LinearArgs args = p.args(weight, 0, c.m, activation);
      args.out = out.view();
      ASSERT_TRUE(linear(host.context(), args)) << c.name;
      EXPECT_TRUE(out.guards_intact()) << c.name;
      for (std::int64_t m = 0; m < c.m; ++m) {
        for (std::int64_t n = 0; n < c.n; ++n) {
          double magnitude = 1;
          const double expected = exact_output(p, weight, m, n, activation, &magnitude);
          ASSERT_NEAR(out.at(m, n), expected, magnitude * 2e-6) << c.name << " " << m << "," << n;
        }
      }
    }
  });
}

TEST_P(LinearEveryDType, ARowKeepsItsBitsInAnyBatch) {
  on_every_target([&] {
    Host host(2);
    Problem p({"", 33, 130, 600}, GetParam());
    const LinearWeight weight = p.pack(host.device());
    Guarded whole(33, 130);
    LinearArgs args = p.args(weight, 0, 33, Activation::gelu_erf);
    args.out = whole.view();
    ASSERT_TRUE(linear(host.context(), args));
    for (std::int64_t size = 1; size <= 32; ++size) {
      for (std::int64_t begin = 0; begin + size <= 33; begin += size) {
        Guarded part(size, 130);
        args = p.args(weight, begin, begin + size, Activation::gelu_erf);
        args.out = part.view();
        ASSERT_TRUE(linear(host.context(), args));
        for (std::int64_t i = 0; i < size; ++i)
          ASSERT_TRUE(part.row_equals(i, whole, begin + i)) << size << " " << begin + i;
      }
    }
  });
}

TEST_P(LinearEveryDType, ThreadsDoNotChangeBits) {
  on_every_target([&] {
    for (const std::int64_t m : {1, 5, 40, 300}) {
      Problem p({"", m, 200, 530}, GetParam());
      std::vector<Guarded> outs;
      for (const int threads : {1, 2, 3}) {
        Host host(threads);
        const LinearWeight weight = p.pack(host.device());
        outs.emplace_back(m, 200);
        LinearArgs args = p.args(weight, 0, m, Activation::none);
        args.out = outs.back().view();
        ASSERT_TRUE(linear(host.context(), args));
      }
      EXPECT_TRUE(outs[0].equals(outs[1]) && outs[0].equals(outs[2])) << m;
    }
  });
}

TEST_P(LinearEveryDType, StacksSources) {
  Host host;
  Problem p({"", 3, 50, 40}, GetParam());
  const LinearWeight whole = p.pack(host.device());
  const LinearSource parts[] = {{TensorView(p.w.data(), DType::f32, {13, 40}), nullptr},
                                {TensorView(p.w.data() + 13 * 40, DType::f32, {37, 40}), nullptr}};
  auto stacked = LinearWeight::pack(host.device(), parts, GetParam());
  ASSERT_TRUE(stacked);
  EXPECT_EQ(std::memcmp(whole.panel(0), stacked->panel(0), whole.panel_bytes() * 2), 0);
}

TEST_P(LinearEveryDType, InstructionSetsGiveTheSameBits) {
  Host host(2);
  for (const std::int64_t m : {1, 3, 8, 50}) {
    Problem p({"", m, 130, 1030}, GetParam());
    const LinearWeight weight = p.pack(host.device());
    std::vector<Guarded> outs;
    on_every_target([&] {
      outs.emplace_back(m, 130);
      LinearArgs args = p.args(weight, 0, m, static_cast<Activation>(m % 4));
      args.out = outs.back().view();
      ASSERT_TRUE(linear(host.context(), args));
      EXPECT_TRUE(outs.back().equals(outs.front()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearEveryDType, testing::Values(DType::f32, DType::f16, DType::bf16, DType::i8),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST(Linear, KeepsNumbersOfAnI8Checkpoint) {
  on_every_target([&] {
    Host host;
    // -128 is not what a symmetric quantiser writes, but a file may hold it.
    std::vector<std::int8_t> w = {-128, 127, 5, -128, 1, 2, 3, -7};
    const float scales[] = {0.5f, 2.0f};
    const TensorView view(w.data(), DType::i8, {2, 4});
    auto packed = LinearWeight::pack(host.device(), LinearSource{view, scales}, DType::i8);
    ASSERT_TRUE(packed);
    std::vector<float> x = {127, -127, 3, -126};
    Guarded out(1, 2);
    LinearArgs args;
    args.x = matrix(x, 1, 4);
    args.weight = &*packed;
    args.out = out.view();
    ASSERT_TRUE(linear(host.context(), args));
    EXPECT_EQ(out.at(0, 0), 0.5f * (127 * -128 - 127 * 127 + 15 + 126 * 128));
    EXPECT_EQ(out.at(0, 1), 2.0f * (127 - 254 + 9 + 126 * 7));
  });
}

// Every pair of dtypes, odd K, rows of a file at an odd address, with and without threads: what read_row gives back is
// the source rounded to the storage.
TEST(Linear, PacksEveryDTypeFromAnyAddress) {
  Host host(3);
  const std::int64_t n = 150, k = 37;
  const auto values = random_floats(n * k, 3);
  std::vector<float> scales(static_cast<std::size_t>(n), 0.5f);
  for (const DType from : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(n * k) * dtype_bytes(from) + 1);
    std::vector<float> exact(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::byte* to = bytes.data() + 1 + i * dtype_bytes(from);
      const Half half = to_half(values[i]);
      const BFloat16 brain = to_bfloat16(values[i]);
      const auto code = static_cast<std::int8_t>(values[i] * 30);
      if (from == DType::f32) std::memcpy(to, &values[i], 4), exact[i] = values[i];
      if (from == DType::f16) std::memcpy(to, &half, 2), exact[i] = to_float(half);
      if (from == DType::bf16) std::memcpy(to, &brain, 2), exact[i] = to_float(brain);
      if (from == DType::i8) std::memcpy(to, &code, 1), exact[i] = 0.5f * static_cast<float>(code);
    }
    const LinearSource source{TensorView(bytes.data() + 1, from, {n, k}), from == DType::i8 ? scales.data() : nullptr};
    for (const DType storage : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
      SCOPED_TRACE(std::string(dtype_name(from)) + " to " + std::string(dtype_name(storage)));
      auto alone = LinearWeight::pack(host.device(), source, storage);
      auto shared = LinearWeight::pack(host.device(), source, storage, host.context().pool);
      ASSERT_TRUE(alone && shared);
      EXPECT_EQ(std::memcmp(alone->panel(0), shared->panel(0),
                            alone->panel_bytes() * static_cast<std::size_t>(alone->num_panels())),
                0);
      std::vector<float> row(static_cast<std::size_t>(k));
      for (std::int64_t output = 0; output < n; ++output) {
        shared->read_row(output, row.data());
        for (std::int64_t i = 0; i < k; ++i) {
          const float value = exact[static_cast<std::size_t>(output * k + i)];
          const float stored = storage == DType::f16    ? to_float(to_half(value))
                               : storage == DType::bf16 ? to_float(to_bfloat16(value))
                                                        : value;
          if (storage == DType::i8 && from != DType::i8) {
            ASSERT_NEAR(row[static_cast<std::size_t>(i)], value, shared->column_scales()[output] * 0.501f);
          } else {
            ASSERT_EQ(row[static_cast<std::size_t>(i)], stored);
          }
        }
      }
    }
  }
}

TEST(Linear, ResidualMayBeTheOutput) {
  on_every_target([&] {
    Host host;
    Problem p({"", 5, 40, 30}, DType::f32);
    const LinearWeight weight = p.pack(host.device());
    Guarded apart(5, 40), same(5, 40);
    for (int m = 0; m < 5; ++m)
      for (int n = 0; n < 40; ++n) same.set(m, n, p.residual[static_cast<std::size_t>(m * 40 + n)]);
    LinearArgs args = p.args(weight, 0, 5, Activation::silu);
    args.out = apart.view();
    ASSERT_TRUE(linear(host.context(), args));
    args.residual = args.out = same.view();
    ASSERT_TRUE(linear(host.context(), args));
    EXPECT_TRUE(apart.equals(same));
  });
}

// Norms pass between products on CUDA alone.
TEST(Linear, PassesNoNormsOnTheCpu) {
  Host host;
  Problem p({"", 2, 8, 16}, DType::f32);
  const LinearWeight weight = p.pack(host.device());
  auto gains = random_floats(8, 5), squares = random_floats(4, 6);
  Guarded out(2, 8), rows(2, 8);
  LinearArgs args = p.args(weight, 0, 2, Activation::none);
  args.out = out.view();
  EXPECT_EQ(passed_norm_parts(host.context(), args, {.weight = &weight}), 0);
  ASSERT_TRUE(linear(host.context(), args));
  LinearArgs lacking = args, passing = args;
  lacking.squares = {.parts = matrix(squares, 1, 4), .width = 16, .epsilon = 1e-6f};
  EXPECT_EQ(linear(host.context(), lacking).error().code, Code::internal);
  passing.passed = {.gains = vector(gains), .rows = rows.view(), .squares = matrix(squares, 1, 4)};
  EXPECT_EQ(linear(host.context(), passing).error().code, Code::internal);
}

TEST(Linear, RefusesWhatDoesNotFit) {
  Host host;
  Problem p({"", 2, 8, 8}, DType::f32);
  const LinearWeight weight = p.pack(host.device());
  Guarded out(2, 9);
  LinearArgs args = p.args(weight, 0, 2, Activation::none);
  args.out = out.view();
  EXPECT_FALSE(linear(host.context(), args));
  EXPECT_EQ(
      LinearWeight::pack(host.device(), LinearSource{TensorView(p.w.data(), DType::i32, {8, 8}), nullptr}, DType::f32)
          .error()
          .code,
      Code::bad_model);
  EXPECT_FALSE(
      LinearWeight::pack(host.device(), LinearSource{TensorView(p.w.data(), DType::i8, {8, 8}), nullptr}, DType::i8));
}

}  // namespace
}  // namespace mstar
