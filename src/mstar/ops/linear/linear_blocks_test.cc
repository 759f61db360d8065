// linear over block-quantised weights.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mstar/ops/linear/block_cases.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

struct Problem {
  Problem(BlockFormat format, std::int64_t rows, std::int64_t outputs, std::int64_t blocks)
      : m(rows), n(outputs), k(blocks * block_elements(format)), stride(k + 3), w(format, n, k, 2), type(format) {
    x = random_floats(m * stride, 1);
    bias = random_floats(n, 3);
    residual = random_floats(m * n, 4);
  }
  LinearWeight pack(Device& device, ThreadPool* pool = nullptr) {
    auto packed = LinearWeight::pack(device, w.source(), type, pool);
    EXPECT_TRUE(packed) << (packed ? "" : packed.error().message);
    return std::move(*packed);
  }
  LinearArgs args(const LinearWeight& weight, std::int64_t begin, std::int64_t end, TensorView out) {
    LinearArgs a;
    a.x = TensorView(x.data() + begin * stride, DType::f32, {end - begin, k});
    a.x.strides[0] = stride;
    a.weight = &weight;
    a.bias = vector(bias);
    a.residual = TensorView(residual.data() + begin * n, DType::f32, {end - begin, n});
    a.out = out;
    return a;
  }
  double extra(std::int64_t row, std::int64_t column) const {
    return static_cast<double>(bias[static_cast<std::size_t>(column)]) +
           residual[static_cast<std::size_t>(row * n + column)];
  }
  // A row of x as the contract rounds it.
  std::vector<double> rounded(std::int64_t row) const {
    std::vector<double> out;
    const float* from = x.data() + row * stride;
    for (std::int64_t at = 0; at < k; at += 32) {
      float largest = 0;
      for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(from[at + i]));
      for (int i = 0; i < 32; ++i)
        out.push_back(static_cast<double>(std::nearbyint(from[at + i] * (127.0f / largest))) * (largest / 127.0f));
    }
    return out;
  }

  std::int64_t m, n, k, stride;
  BlockRows w;
  StoredType type;
  std::vector<float> x, bias, residual;
};

class LinearBlocks : public testing::TestWithParam<BlockFormat> {};

TEST_P(LinearBlocks, KeepsTheNumbersOfTheFile) {
  Host host(2);
  Problem p(GetParam(), 1, 70, 3);
  const LinearWeight weight = p.pack(host.device(), host.context().pool);
  EXPECT_EQ(weight.storage(), GetParam());
  EXPECT_LE(static_cast<double>(weight.panel_bytes()), 1.03 * static_cast<double>(p.type.row_bytes(p.k)) * 32);
  std::vector<float> row(static_cast<std::size_t>(p.k));
  for (std::int64_t output = 0; output < p.n; ++output) {
    weight.read_row(output, row.data());
    EXPECT_EQ(std::memcmp(row.data(), p.w.row(output).data(), row.size() * 4), 0) << output;
  }
}

TEST_P(LinearBlocks, MatchesDoublesOfTheRoundedRow) {
  on_every_target([&] {
    for (const std::int64_t m : {1, 2, 3, 4, 5, 8, 9, 13, 30}) {
      Problem p(GetParam(), m, m == 9 ? 130 : 65, m % 3 + 1);
      Host host(2, std::size_t{4} << 20);
      const LinearWeight weight = p.pack(host.device());
      Guarded out(p.m, p.n, p.n + 5);
      ASSERT_TRUE(linear(host.context(), p.args(weight, 0, m, out.view())));
      EXPECT_TRUE(out.guards_intact());
      for (std::int64_t i = 0; i < m; ++i) {
        const std::vector<double> x = p.rounded(i);
        for (std::int64_t j = 0; j < p.n; ++j) {
          const std::vector<float> w = p.w.row(j);
          double sum = 0, magnitude = 1;
          for (std::size_t k = 0; k < x.size(); ++k) {
            sum += x[k] * w[k];
            magnitude += std::fabs(x[k] * w[k]);
          }
          ASSERT_NEAR(out.at(i, j), sum + p.extra(i, j), magnitude * 3e-6) << m << ": " << i << "," << j;
        }
      }
    }
  });
}

// What rounding x costs: the error of the sum, against what the products add up to at random signs.
TEST_P(LinearBlocks, IsNearTheProductWithX) {
  Host host(2);
  Problem p(GetParam(), 4, 64, 1024 / block_elements(GetParam()));
  const LinearWeight weight = p.pack(host.device());
  Guarded out(p.m, p.n);
  ASSERT_TRUE(linear(host.context(), p.args(weight, 0, p.m, out.view())));
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      const std::vector<float> w = p.w.row(j);
      double sum = p.extra(i, j);
      for (std::int64_t k = 0; k < p.k; ++k) {
        const double product =
            static_cast<double>(p.x[static_cast<std::size_t>(i * p.stride + k)]) * w[static_cast<std::size_t>(k)];
        sum += product;
        size += product * product;
      }
      error += (out.at(i, j) - sum) * (out.at(i, j) - sum);
    }
  }
  EXPECT_LT(std::sqrt(error / size), 0.01);
}

TEST_P(LinearBlocks, ARowKeepsItsBitsInAnyBatch) {
  on_every_target([&] {
    Host host(2);
    Problem p(GetParam(), 40, 70, 2);
    const LinearWeight weight = p.pack(host.device());
    Guarded whole(40, 70);
    ASSERT_TRUE(linear(host.context(), p.args(weight, 0, 40, whole.view())));
    for (const std::int64_t size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 20}) {
      for (std::int64_t begin = 0; begin + size <= 40; begin += size) {
        Guarded part(size, 70);
        ASSERT_TRUE(linear(host.context(), p.args(weight, begin, begin + size, part.view())));
        for (std::int64_t i = 0; i < size; ++i)
          ASSERT_TRUE(part.row_equals(i, whole, begin + i)) << size << " " << begin + i;
      }
    }
  });
}

// Several blocks of K and of rows, on one thread or more, on every instruction set.
TEST_P(LinearBlocks, ThreadsAndInstructionSetsGiveTheSameBits) {
  for (const std::int64_t m : {1, 2, 6, 300}) {
    Problem p(GetParam(), m, 100, 1024 / block_elements(GetParam()) + 1);
    std::vector<Guarded> outs;
    on_every_target([&] {
      for (const int threads : {1, 3}) {
        Host host(threads);
        const LinearWeight weight = p.pack(host.device());
        outs.emplace_back(m, 100);
        ASSERT_TRUE(linear(host.context(), p.args(weight, 0, m, outs.back().view())));
        EXPECT_TRUE(outs.back().equals(outs.front())) << m << " rows, " << threads << " threads";
      }
    });
  }
}

TEST_P(LinearBlocks, StacksSourcesAndWidensThem) {
  Host host(2);
  Problem p(GetParam(), 3, 50, 2);
  const LinearWeight whole = p.pack(host.device());
  const LinearSource parts[] = {p.w.source(0, 13), p.w.source(13, 50)};
  const auto stacked = LinearWeight::pack(host.device(), parts, p.type);
  ASSERT_TRUE(stacked);
  EXPECT_EQ(std::memcmp(whole.panel(0), stacked->panel(0), whole.panel_bytes() * 2), 0);
  const auto wide = LinearWeight::pack(host.device(), parts, DType::f32);
  ASSERT_TRUE(wide);
  std::vector<float> row(static_cast<std::size_t>(p.k));
  wide->read_row(20, row.data());
  EXPECT_EQ(row, p.w.row(20));
}

TEST_P(LinearBlocks, SmallestAndStrangeRows) {
  on_every_target([&] {
    Host host;
    Problem p(GetParam(), 4, 33, 1);
    const LinearWeight weight = p.pack(host.device());
    const auto set = [&](int row, float value) { std::fill_n(p.x.begin() + row * p.stride, p.k, value); };
    set(0, 0.0f);
    set(1, 1e-35f);
    p.x[static_cast<std::size_t>(2 * p.stride + 5)] = std::numeric_limits<float>::infinity();
    p.x[static_cast<std::size_t>(3 * p.stride)] = std::numeric_limits<float>::quiet_NaN();
    Guarded out(4, 33);
    ASSERT_TRUE(linear(host.context(), p.args(weight, 0, 4, out.view())));
    for (std::int64_t j = 0; j < 33; ++j) {
      for (const std::int64_t row : {0, 1})
        EXPECT_EQ(out.at(row, j),
                  p.bias[static_cast<std::size_t>(j)] + p.residual[static_cast<std::size_t>(row * 33 + j)]);
      for (const std::int64_t row : {2, 3}) EXPECT_TRUE(std::isnan(out.at(row, j)));
    }
  });
}

// The largest codes on both sides: no instruction may saturate.
TEST_P(LinearBlocks, LargestCodesAreExact) {
  const BlockFormat format = GetParam();
  for (const std::uint8_t fill : {0x00, 0xff, 0x80, 0x7f}) {
    std::vector<std::byte> row(StoredType(format).row_bytes(256), static_cast<std::byte>(fill));
    for (std::size_t at = 0; at < row.size(); at += block_bytes(format)) {
      const std::uint16_t one = to_half(1.0f).bits;
      std::memcpy(row.data() + at + (format == BlockFormat::q6_k ? 208 : 0), &one, 2);
      const bool has_min = format != BlockFormat::q8_0 && format != BlockFormat::q4_0 && format != BlockFormat::q5_0 &&
                           format != BlockFormat::q6_k;
      if (has_min) std::memcpy(row.data() + at + 2, &one, 2);
    }
    const LinearSource source{.weight = TensorView(row.data(), DType::u8, {1, static_cast<std::int64_t>(row.size())}),
                              .blocks = format};
    std::vector<float> w(256), x(256);
    dequantise(format, row.data(), 256, w.data());
    for (std::size_t i = 0; i < 256; ++i) x[i] = w[i] < 0 || (w[i] == 0 && i % 2) ? -127.0f : 127.0f;
    double expected = 0;
    for (std::size_t i = 0; i < 256; ++i) expected += static_cast<double>(x[i]) * w[i];
    on_every_target([&] {
      Host host;
      auto weight = LinearWeight::pack(host.device(), source, format);
      ASSERT_TRUE(weight);
      Guarded out(1, 1);
      LinearArgs args;
      args.x = matrix(x, 1, 256);
      args.weight = &*weight;
      args.out = out.view();
      ASSERT_TRUE(linear(host.context(), args));
      EXPECT_NEAR(out.at(0, 0), expected, std::fabs(expected) * 2e-6) << static_cast<int>(fill);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearBlocks, testing::ValuesIn(kBlockFormats),
                         [](const auto& format) { return std::string(block_format_name(format.param)); });

TEST(Linear, RefusesBlocksThatDoNotFit) {
  Host host;
  BlockRows q4(BlockFormat::q4_0, 4, 64, 1), q8(BlockFormat::q8_0, 4, 64, 1), longer(BlockFormat::q4_0, 4, 96, 1);
  std::vector<float> plain(4 * 64);
  const auto message = [&](std::span<const LinearSource> sources, StoredType storage) {
    auto packed = LinearWeight::pack(host.device(), sources, storage);
    return packed ? std::string() : packed.error().message;
  };
  const LinearSource mixed[] = {q4.source(), q8.source()};
  EXPECT_EQ(message(mixed, BlockFormat::q4_0), "a linear weight of q8_0 cannot be stored as q4_0");
  EXPECT_EQ(message(mixed, DType::bf16), "");
  const LinearSource floats[] = {{matrix(plain, 4, 64)}};
  EXPECT_EQ(message(floats, BlockFormat::q4_0), "a linear weight of f32 cannot be stored as q4_0");
  const LinearSource lengths[] = {q4.source(), longer.source()};
  EXPECT_NE(message(lengths, BlockFormat::q4_0).find("disagree on K"), std::string::npos);
  LinearSource cut = q4.source();
  cut.weight.shape[1] = 35;
  EXPECT_NE(message({&cut, 1}, BlockFormat::q4_0).find("whole blocks"), std::string::npos);
}

}  // namespace
}  // namespace mstar
