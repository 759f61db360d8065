#include "mstar/ops/first_frames/first_frames.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

struct Problem {
  std::int64_t columns;
  int lead;
  std::vector<std::int32_t> offsets, frames;
  std::vector<float> scores;
  std::vector<std::uint8_t> trace;
  std::vector<std::int32_t> out;

  FirstFramesArgs args() {
    const std::int64_t tokens = offsets.back(), rows = std::ssize(offsets) - 1;
    trace.resize(scores.size());
    out.assign(static_cast<std::size_t>(tokens - rows * (lead + 1)), -1);
    return {.scores = TensorView(scores.data(), DType::f32, {tokens, columns}),
            .rows = {offsets.data(), static_cast<int>(rows), static_cast<int>(tokens)},
            .frames = TensorView(frames.data(), DType::i32, {tokens}),
            .lead = lead,
            .longest = static_cast<int>(tokens),
            .trace = TensorView(trace.data(), DType::u8, {tokens, columns}),
            .out = TensorView(out.data(), DType::i32, {std::ssize(out)})};
  }
};

// The largest sum of any way through `scores`, and the sum of the largest way that begins each token at `first`.
double best_way(const std::vector<float>& scores, std::int64_t columns, int tokens, int frames,
                const std::vector<std::int32_t>* first) {
  std::vector<double> best(static_cast<std::size_t>(tokens * frames), -std::numeric_limits<double>::infinity());
  for (int t = 0; t < tokens; ++t)
    for (int f = 0; f < frames; ++f) {
      const auto at = [&](int i, int j) { return best[static_cast<std::size_t>(i * frames + j)]; };
      double before = t == 0 && f == 0 ? 0 : -std::numeric_limits<double>::infinity();
      const bool begins = !first || (*first)[static_cast<std::size_t>(t)] == f;
      const bool goes_on = !first || (*first)[static_cast<std::size_t>(t)] < f;
      if (t > 0 && begins) before = std::max(before, at(t - 1, f));
      if (t > 0 && f > 0 && begins) before = std::max(before, at(t - 1, f - 1));
      if (f > 0 && goes_on) before = std::max(before, at(t, f - 1));
      best[static_cast<std::size_t>(t * frames + f)] = before + scores[static_cast<std::size_t>(t * columns + f)];
    }
  return best.back();
}

TEST(FirstFrames, GoTheBestWayAndNeverBack) {
  Host host(2);
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    Problem p{.columns = 30,
              .lead = static_cast<int>(seed % 4),
              .offsets = {0},
              .frames = {},
              .scores = {},
              .trace = {},
              .out = {}};
    std::vector<int> counts, lengths;
    for (std::uint32_t r = 0; r < 3; ++r) {
      counts.push_back(static_cast<int>((seed * 7 + r * 11) % 40) + 1);
      lengths.push_back(static_cast<int>((seed * 5 + r * 13) % 30) + 1);
      p.offsets.push_back(p.offsets.back() + counts.back() + p.lead + 1);
      p.frames.resize(static_cast<std::size_t>(p.offsets.back()), lengths.back());
    }
    p.scores = random_floats(p.offsets.back() * p.columns, seed);
    const std::vector<float> scores = p.scores;
    ASSERT_TRUE(first_frames(host.context(), p.args()));
    std::size_t at = 0;
    for (std::size_t r = 0; r < 3; ++r) {
      const std::vector<std::int32_t> first(p.out.begin() + static_cast<std::ptrdiff_t>(at),
                                            p.out.begin() + static_cast<std::ptrdiff_t>(at) + counts[r]);
      at += static_cast<std::size_t>(counts[r]);
      EXPECT_EQ(first.front(), 0);
      EXPECT_LT(first.back(), lengths[r]);
      EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
      const auto begin = scores.begin() + (p.offsets[r] + p.lead) * p.columns;
      const std::vector<float> own(begin, begin + counts[r] * p.columns);
      EXPECT_NEAR(best_way(own, p.columns, counts[r], lengths[r], &first),
                  best_way(own, p.columns, counts[r], lengths[r], nullptr), 1e-3)
          << seed;
    }
    EXPECT_EQ(at, p.out.size());
  }
}

// openai-whisper's: of equal ways the frame goes on.
TEST(FirstFrames, TiesGoToTheNextFrame) {
  Host host;
  Problem p{.columns = 5,
            .lead = 1,
            .offsets = {0, 5},
            .frames = std::vector<std::int32_t>(5, 5),
            .scores = std::vector<float>(25, 0.0f),
            .trace = {},
            .out = {}};
  ASSERT_TRUE(first_frames(host.context(), p.args()));
  EXPECT_EQ(p.out, (std::vector<std::int32_t>{0, 0, 0}));
}

TEST(FirstFrames, StayInOrderWhateverTheScores) {
  Host host;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    Problem p{.columns = 8,
              .lead = 1,
              .offsets = {0, 7, 8},
              .frames = {6, 6, 6, 6, 6, 6, 6, 99},
              .scores = std::vector<float>(64, value),
              .trace = {},
              .out = {}};
    p.offsets = {0, 8};
    ASSERT_TRUE(first_frames(host.context(), p.args()));
    EXPECT_TRUE(std::is_sorted(p.out.begin(), p.out.end()));
    EXPECT_EQ(p.out.front(), 0);
    EXPECT_LT(p.out.back(), 6);
  }
}

}  // namespace
}  // namespace mstar
