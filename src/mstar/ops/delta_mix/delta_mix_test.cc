#include "mstar/ops/delta_mix/delta_mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

struct Mixer {
  std::int64_t key_heads = 2, heads = 4, key_dim = 8, value_dim = 16, taps = 4;
  bool interleaved = false;
  std::vector<float> in, weight, rate, dt_bias, gain;

  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return heads * value_dim; }
  std::int64_t channels() const { return 2 * keys() + values(); }
  std::int64_t width() const { return channels() + values() + 2 * heads; }
  Mixer(bool interleaves, std::int64_t tokens) : interleaved(interleaves) {
    in = random_floats(tokens * width(), 1);
    weight = random_floats(taps * channels(), 2, 0.5f);
    rate = random_floats(heads, 3);
    for (float& v : rate) v = std::fabs(v);
    dt_bias = random_floats(heads, 4);
    gain = random_floats(value_dim, 5);
  }
};

double silu(double x) { return x / (1 + std::exp(-x)); }

// [tokens, values] of one sequence from its beginning, in doubles.
std::vector<double> exactly(const Mixer& m, std::int64_t tokens) {
  std::vector<double> out, states(static_cast<std::size_t>(m.heads * m.key_dim * m.value_dim));
  const auto input = [&](std::int64_t t, std::int64_t column) {
    return t < 0 ? 0.0 : static_cast<double>(m.in[static_cast<std::size_t>(t * m.width() + column)]);
  };
  const auto number = [](const std::vector<float>& of, std::int64_t i) {
    return static_cast<double>(of[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto convolved = [&](std::int64_t channel) {
      double sum = 0;
      for (std::int64_t j = 0; j < m.taps; ++j)
        sum += number(m.weight, j * m.channels() + channel) * input(t - m.taps + 1 + j, channel);
      return silu(sum);
    };
    const auto unit = [&](std::int64_t first) {
      std::vector<double> values;
      double squares = 1e-6;
      for (std::int64_t i = 0; i < m.key_dim; ++i) {
        values.push_back(convolved(first + i));
        squares += values.back() * values.back();
      }
      for (double& v : values) v /= std::sqrt(squares);
      return values;
    };
    for (std::int64_t h = 0; h < m.heads; ++h) {
      const std::int64_t key_head = m.interleaved ? h % m.key_heads : h / (m.heads / m.key_heads);
      const auto q = unit(key_head * m.key_dim), k = unit(m.keys() + key_head * m.key_dim);
      const std::int64_t z_at = m.channels(), b_at = z_at + m.values(), a_at = b_at + m.heads;
      const double decay =
          std::exp(-number(m.rate, h) * std::log1p(std::exp(input(t, a_at + h) + number(m.dt_bias, h))));
      const double beta = 1 / (1 + std::exp(-input(t, b_at + h)));
      double* const state = states.data() + h * m.key_dim * m.value_dim;
      std::vector<double> row;
      double squares = 0;
      for (std::int64_t c = 0; c < m.value_dim; ++c) {
        double known = 0, seen = 0;
        for (std::int64_t i = 0; i < m.key_dim; ++i)
          known += (state[i * m.value_dim + c] *= decay) * k[static_cast<std::size_t>(i)];
        const double change = beta * (convolved(2 * m.keys() + h * m.value_dim + c) - known);
        for (std::int64_t i = 0; i < m.key_dim; ++i)
          seen += (state[i * m.value_dim + c] += k[static_cast<std::size_t>(i)] * change) *
                  q[static_cast<std::size_t>(i)] / std::sqrt(static_cast<double>(m.key_dim));
        row.push_back(seen);
        squares += seen * seen;
      }
      for (std::int64_t c = 0; c < m.value_dim; ++c)
        out.push_back(row[static_cast<std::size_t>(c)] / std::sqrt(squares / static_cast<double>(m.value_dim) + 1e-6) *
                      number(m.gain, c) * silu(input(t, z_at + h * m.value_dim + c)));
    }
  }
  return out;
}

TensorView view_of(std::vector<float>& values, Shape shape) { return {values.data(), DType::f32, shape}; }

// Tokens [first, first + count) of the sequence, as one row that goes from slot `from` to slot `to`.
struct Step {
  std::int64_t first, count;
  std::int32_t from, to;
  std::int32_t kept = 0, kept_slot = 0;
};
constexpr std::int64_t kSlots = 3;
Status run(Host& host, Mixer& m, const Step& step, std::vector<float>& conv, std::vector<float>& rule,
           std::vector<float>& out) {
  const std::int32_t offsets[] = {0, static_cast<std::int32_t>(step.count)};
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < step.count; ++t) positions.push_back(static_cast<std::int32_t>(step.first + t));
  const auto tokens = static_cast<std::int64_t>(m.in.size()) / m.width();
  const std::int64_t end = step.first + step.count;
  DeltaMixArgs args;
  args.in = view_of(m.in, {tokens, m.width()}).slice(step.first, end);
  args.rows = {offsets, 1, static_cast<int>(step.count)};
  args.positions = positions.data();
  args.conv_weight = view_of(m.weight, {m.taps, m.channels()});
  args.rate = view_of(m.rate, {m.heads});
  args.dt_bias = view_of(m.dt_bias, {m.heads});
  args.norm_weight = view_of(m.gain, {m.value_dim});
  args.key_heads = m.key_heads;
  args.interleaved_heads = m.interleaved;
  args.conv_state = view_of(conv, {kSlots, m.taps - 1, m.channels()});
  args.rule_state = view_of(rule, {kSlots, m.heads, m.key_dim, m.value_dim});
  args.slots = &step.to;
  args.read_slots = &step.from;
  if (step.kept > 0) args.kept = {&step.kept, &step.kept_slot};
  args.out = view_of(out, {tokens, m.heads, m.value_dim}).slice(step.first, end);
  return delta_mix(host.context(), args);
}

TEST(DeltaMix, IsTheFormulaHoweverTheSequenceIsCut) {
  on_every_target([] {
    for (const bool interleaved : {false, true}) {
      constexpr std::int64_t kTokens = 6;
      Host host;
      Mixer m(interleaved, kTokens);
      const auto expected = exactly(m, kTokens);
      std::vector<float> conv(static_cast<std::size_t>(kSlots * (m.taps - 1) * m.channels()), 7.0f);
      std::vector<float> rule(static_cast<std::size_t>(kSlots * m.heads * m.key_dim * m.value_dim), 7.0f);
      std::vector<float> out(expected.size());
      const std::size_t used = host.arena().mark();
      for (const Step& step : {Step{0, 3, 0, 0}, Step{3, 1, 0, 1}, Step{4, 2, 1, 1}}) {
        const Status ran = run(host, m, step, conv, rule, out);
        ASSERT_TRUE(ran) << ran.error().message;
      }
      EXPECT_EQ(host.arena().mark(), used);
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(out[i], expected[i], 2e-4 * std::max(1.0, std::fabs(expected[i]))) << i;
    }
  });
}

TEST(DeltaMix, KeepsBothStatesWithinARow) {
  on_every_target([] {
    constexpr std::int64_t kTokens = 6;
    Host host;
    Mixer m(false, kTokens);
    std::vector<float> conv(static_cast<std::size_t>(kSlots * (m.taps - 1) * m.channels()), 7.0f), cut_conv = conv;
    std::vector<float> rule(static_cast<std::size_t>(kSlots * m.heads * m.key_dim * m.value_dim), 7.0f),
        cut_rule = rule;
    std::vector<float> out(static_cast<std::size_t>(kTokens * m.values())), cut_out = out;
    ASSERT_TRUE(run(host, m, {0, kTokens, 0, 1, 4, 2}, conv, rule, out));
    ASSERT_TRUE(run(host, m, {0, 4, 0, 2}, cut_conv, cut_rule, cut_out));
    ASSERT_TRUE(run(host, m, {4, 2, 2, 1}, cut_conv, cut_rule, cut_out));
    EXPECT_EQ(conv, cut_conv);
    EXPECT_EQ(rule, cut_rule);
    EXPECT_EQ(out, cut_out);
  });
}

TEST(DeltaMix, RefusesHeadsThatAreNoMultiple) {
  Host host;
  Mixer m(false, 2);
  std::vector<float> conv(static_cast<std::size_t>(kSlots * (m.taps - 1) * m.channels()));
  std::vector<float> rule(static_cast<std::size_t>(kSlots * m.heads * m.key_dim * m.value_dim));
  std::vector<float> out(static_cast<std::size_t>(2 * m.values()));
  m.key_heads = 3;  // no divisor of the heads
  EXPECT_EQ(run(host, m, {0, 1, 0, 0}, conv, rule, out).error().code, Code::internal);
}

}  // namespace
}  // namespace mstar
