#include "mstar/ops/causal_conv1d/causal_conv1d.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

// Sequences of which a step runs a part each: row r has tokens [done[r], done[r] + counts[r]) of its own inputs.
struct Sequences {
  std::int64_t channels, taps;
  std::vector<std::vector<float>> inputs;
  std::vector<float> weight;

  Sequences(std::int64_t channel_count, std::int64_t tap_count, int count, std::int64_t tokens)
      : channels(channel_count), taps(tap_count), weight(random_floats(tap_count * channel_count, 1)) {
    for (int r = 0; r < count; ++r)
      inputs.push_back(random_floats(tokens * channels, static_cast<std::uint32_t>(10 + r)));
  }
  double exactly(std::size_t row, std::int64_t t, std::int64_t channel) const {
    double sum = 0;
    for (std::int64_t j = 0; j < taps; ++j) {
      const std::int64_t at = t - taps + 1 + j;
      if (at >= 0)
        sum += static_cast<double>(inputs[row][static_cast<std::size_t>(at * channels + channel)]) *
               weight[static_cast<std::size_t>(j * channels + channel)];
    }
    return sum / (1 + std::exp(-sum));
  }
};

struct Step {
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> done;
  std::vector<std::int32_t> counts, slots, read_slots = {}, kept_tokens = {}, kept_slots = {};
};

// One step into `out`, whose rows lie apart, as those of x do. The state holds three slots with a gap after each.
void run(Host& host, const Sequences& s, const Step& step, std::vector<float>& state, Guarded& out) {
  std::vector<std::int32_t> offsets = {0}, positions;
  const std::int64_t stride = s.channels + 3;
  std::vector<float> x;
  for (std::size_t r = 0; r < step.rows.size(); ++r) {
    for (std::int64_t t = step.done[r]; t < step.done[r] + step.counts[r]; ++t) {
      positions.push_back(static_cast<std::int32_t>(t));
      for (std::int64_t c = 0; c < stride; ++c)
        x.push_back(c < s.channels ? s.inputs[step.rows[r]][static_cast<std::size_t>(t * s.channels + c)] : NAN);
    }
    offsets.push_back(offsets.back() + step.counts[r]);
  }
  std::vector<float> weight = s.weight;
  CausalConv1dArgs args;
  args.x = TensorView(x.data(), DType::f32, {offsets.back(), s.channels});
  args.x.strides[0] = stride;
  args.rows = {offsets.data(), static_cast<int>(step.rows.size()), offsets.back()};
  args.positions = positions.data();
  args.weight = matrix(weight, s.taps, s.channels);
  args.activation = Activation::silu;
  args.state = TensorView(state.data(), DType::f32, {3, s.taps - 1, s.channels});
  args.state.strides[0] = (s.taps - 1) * s.channels + 5;
  args.slots = step.slots.data();
  if (!step.read_slots.empty()) args.read_slots = step.read_slots.data();
  if (!step.kept_tokens.empty()) args.kept = {step.kept_tokens.data(), step.kept_slots.data()};
  args.out = out.view();
  const Status done = causal_conv1d(host.context(), args);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_TRUE(out.guards_intact());
}

std::vector<float> dirty_state(const Sequences& s) {
  return std::vector<float>(static_cast<std::size_t>(3 * ((s.taps - 1) * s.channels + 5)), 77.0f);
}

TEST(CausalConv1d, MatchesDoublesAndKeepsTheLastInputs) {
  on_every_target([&] {
    Host host(2);
    for (const std::int64_t channels : {1, 7, 16, 33, 600}) {
      for (const std::int64_t taps : {2, 4, 8}) {
        const Sequences s(channels, taps, 3, 40);
        auto state = dirty_state(s);
        // Rows of many, of no and of few tokens; the third is shorter than the state.
        const Step step = {{0, 1, 2}, {0, 0, 0}, {40, 0, 2}, {1, 0, 2}};
        Guarded out(42, channels, channels + 2);
        run(host, s, step, state, out);
        for (std::int64_t c = 0; c < channels; ++c) {
          for (std::int64_t t = 0; t < 40; ++t) ASSERT_NEAR(out.at(t, c), s.exactly(0, t, c), 3e-6);
          for (std::int64_t t = 0; t < 2; ++t) ASSERT_NEAR(out.at(40 + t, c), s.exactly(2, t, c), 3e-6);
        }
        const std::int64_t stride = (taps - 1) * channels + 5;
        for (std::int64_t j = 0; j < taps - 1; ++j) {
          for (std::int64_t c = 0; c < channels; ++c) {
            const auto at = static_cast<std::size_t>(j * channels + c);
            ASSERT_EQ(state[at], 77.0f) << "a row without tokens leaves its slot alone";
            ASSERT_EQ(state[at + static_cast<std::size_t>(stride)],
                      s.inputs[0][static_cast<std::size_t>((40 - taps + 1 + j) * channels + c)]);
            const std::int64_t t = 2 - taps + 1 + j;
            ASSERT_EQ(state[at + static_cast<std::size_t>(2 * stride)],
                      t < 0 ? 0.0f : s.inputs[2][static_cast<std::size_t>(t * channels + c)]);
          }
        }
        for (int i = 1; i <= 5; ++i) ASSERT_EQ(state[state.size() - static_cast<std::size_t>(i)], 77.0f);
      }
    }
  });
}

TEST(CausalConv1d, BitsDependNeitherOnStepsNorOnOtherRows) {
  on_every_target([&] {
    Host host(2), single(1);
    const Sequences s(600, 4, 2, 23);
    auto whole_state = dirty_state(s), state = dirty_state(s);
    Guarded whole(46, 600);
    run(host, s, {{0, 1}, {0, 0}, {23, 23}, {2, 1}}, whole_state, whole);
    std::int64_t done = 0;
    for (const std::int32_t count : {1, 1, 5, 2, 13, 1}) {
      Guarded part(count, 600);
      run(single, s, {{1}, {done}, {count}, {1}}, state, part);
      for (std::int64_t t = 0; t < count; ++t) ASSERT_TRUE(part.row_equals(t, whole, 23 + done + t)) << done + t;
      done += count;
    }
    const std::size_t slot = 3 * 600 + 5;
    for (std::size_t i = slot; i < 2 * slot; ++i) ASSERT_EQ(state[i], whole_state[i]);
    // From one slot to another and back.
    state = dirty_state(s);
    std::int32_t at = 0;
    done = 0;
    for (const std::int32_t count : {1, 1, 5, 2, 13, 1}) {
      Guarded part(count, 600);
      const auto before = state;
      run(single, s, {{1}, {done}, {count}, {1 - at}, {at}}, state, part);
      for (std::int64_t t = 0; t < count; ++t) ASSERT_TRUE(part.row_equals(t, whole, 23 + done + t)) << done + t;
      for (std::size_t i = 0; i < slot; ++i)
        ASSERT_EQ(state[static_cast<std::size_t>(at) * slot + i], before[static_cast<std::size_t>(at) * slot + i]);
      at = 1 - at;
      done += count;
    }
  });
}

TEST(CausalConv1d, KeepsWhatAShorterRowWouldEndWith) {
  on_every_target([&] {
    Host host(2);
    const std::int64_t channels = 300;
    for (const std::int64_t taps : {2, 4}) {
      const Sequences s(channels, taps, 2, 40);
      const auto slot = static_cast<std::size_t>((taps - 1) * channels), stride = slot + 5;
      for (const std::int64_t done : {0, 7}) {
        for (const std::int32_t kept : {0, 1, 2, 5, 12}) {
          auto state = random_floats(static_cast<std::int64_t>(3 * stride), 3), cut = state, plain = state;
          Guarded out(12, channels), whole(12, channels), part(std::max(kept, 1), channels);
          run(host, s, {{0}, {done}, {12}, {0}, {1}, {kept}, {2}}, state, out);
          run(host, s, {{0}, {done}, {12}, {0}, {1}}, plain, whole);
          for (std::int64_t t = 0; t < 12; ++t) ASSERT_TRUE(out.row_equals(t, whole, t));
          for (std::size_t i = 0; i < 2 * stride; ++i) ASSERT_EQ(state[i], plain[i]);
          if (kept > 0) run(host, s, {{0}, {done}, {kept}, {2}, {1}}, cut, part);
          for (std::size_t i = 2 * stride; i < state.size(); ++i) ASSERT_EQ(state[i], cut[i]) << kept;
        }
      }
    }
  });
}

TEST(CausalConv1d, RefusesShapesThatDoNotFit) {
  Host host;
  std::vector<float> x(8 * 4), weight(4 * 4), state(3 * 4), out(8 * 4);
  std::vector<std::int32_t> offsets = {0, 8}, positions(8), slots = {0};
  CausalConv1dArgs args;
  args.x = matrix(x, 8, 4);
  args.rows = {offsets.data(), 1, 8};
  args.positions = positions.data();
  args.weight = matrix(weight, 4, 4);
  args.state = TensorView(state.data(), DType::f32, {1, 3, 4});
  args.slots = slots.data();
  args.out = matrix(out, 8, 4);
  EXPECT_TRUE(causal_conv1d(host.context(), args));
  auto bad = args;
  bad.out = args.x;
  EXPECT_FALSE(causal_conv1d(host.context(), bad));
  bad = args;
  bad.weight = matrix(weight, 2, 4);
  EXPECT_FALSE(causal_conv1d(host.context(), bad));
  bad = args;
  bad.slots = nullptr;
  EXPECT_FALSE(causal_conv1d(host.context(), bad));
  bad = args;
  bad.kept.tokens = slots.data();
  EXPECT_FALSE(causal_conv1d(host.context(), bad));
}

}  // namespace
}  // namespace mstar
