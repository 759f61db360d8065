#include "mstar/ops/alignment_scores/alignment_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

// Keys of one row's slot as the CPU has them (ops/attention/kv_layout.h), and its queries.
struct Problem {
  std::int64_t heads = 3, dim = 16, capacity = 48, columns = 40;
  std::vector<std::int32_t> offsets = {0, 9, 9, 13, 20}, frames, slots = {2, 0, 1, 3};
  std::vector<int> row_frames = {40, 1, 2, 23};
  std::vector<float> q, keys, values;

  Problem() {
    for (std::size_t r = 0; r + 1 < offsets.size(); ++r)
      for (int t = offsets[r]; t < offsets[r + 1]; ++t) frames.push_back(row_frames[r]);
    q = random_floats(num_tokens() * heads * dim, 1, 2.0f);
    keys = random_floats(4 * heads * capacity * dim, 2);
    values = keys;
  }
  std::int64_t num_tokens() const { return offsets.back(); }
  float key(std::int64_t slot, std::int64_t head, std::int64_t at, std::int64_t d) const {
    return keys[static_cast<std::size_t>((slot * heads + head) * capacity * dim + at / 16 * 16 * dim + d * 16 +
                                         at % 16)];
  }
  AlignmentScoresArgs args(std::vector<float>& weights, std::vector<float>& scores, const std::vector<int>& picked) {
    weights.resize(static_cast<std::size_t>(num_tokens() * columns));
    scores.resize(weights.size());
    return {.q = TensorView(q.data(), DType::f32, {num_tokens(), heads, dim}),
            .rows = {offsets.data(), 4, static_cast<int>(num_tokens())},
            .kv = {.keys = TensorView(keys.data(), DType::f32, {4, capacity, heads, dim}),
                   .values = TensorView(values.data(), DType::f32, {4, capacity, heads, dim}),
                   .slots = slots.data()},
            .frames = TensorView(frames.data(), DType::i32, {num_tokens()}),
            .heads = picked,
            .scale = 0.25f,
            .share = 1.0f / static_cast<float>(picked.size()),
            .weights = TensorView(weights.data(), DType::f32, {num_tokens(), columns}),
            .scores = TensorView(scores.data(), DType::f32, {num_tokens(), columns})};
  }

  // As it is defined, in doubles.
  std::vector<double> expected(const std::vector<int>& picked) const {
    std::vector<double> out(static_cast<std::size_t>(num_tokens() * columns));
    for (std::size_t r = 0; r + 1 < offsets.size(); ++r)
      for (const int head : picked) add_head(r, head, static_cast<double>(picked.size()), out);
    return out;
  }

 private:
  void add_head(std::size_t r, int head, double num_heads, std::vector<double>& out) const {
    const int first = offsets[r], n = offsets[r + 1] - first, f = row_frames[r];
    std::vector<std::vector<double>> w(static_cast<std::size_t>(n), std::vector<double>(static_cast<std::size_t>(f)));
    for (int t = 0; t < n; ++t) {
      double sum = 0;
      for (int j = 0; j < f; ++j) {
        double product = 0;
        for (std::int64_t d = 0; d < dim; ++d)
          product += static_cast<double>(q[static_cast<std::size_t>(((first + t) * heads + head) * dim + d)]) *
                     key(slots[r], head, j, d);
        sum += w[static_cast<std::size_t>(t)][static_cast<std::size_t>(j)] = std::exp(product * 0.25);
      }
      for (double& each : w[static_cast<std::size_t>(t)]) each /= sum;
    }
    for (std::size_t j = 0; j < static_cast<std::size_t>(f); ++j) {
      double mean = 0, variance = 0;
      for (const auto& row : w) mean += row[j] / n;
      for (const auto& row : w) variance += (row[j] - mean) * (row[j] - mean) / n;
      for (auto& row : w) row[j] = variance > 1e-30 ? (row[j] - mean) / std::sqrt(variance) : 0;
    }
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < f; ++j) {
        std::vector<double> window;
        for (int i = j - 3; i <= j + 3; ++i) {
          const int from = std::abs(i) < f ? std::abs(i) : 2 * (f - 1) - std::abs(i);
          window.push_back(w[static_cast<std::size_t>(t)][static_cast<std::size_t>(f > 3 ? from : j)]);
        }
        std::sort(window.begin(), window.end());
        out[static_cast<std::size_t>((first + t) * columns + j)] += window[3] / num_heads;
      }
  }
};

TEST(AlignmentScores, AreWhatTheirDefinitionSays) {
  Problem problem;
  Host host(2);
  std::vector<float> weights, scores;
  for (const std::vector<int>& picked : {std::vector<int>{0, 2}, {1}, {2, 1, 0}}) {
    ASSERT_TRUE(alignment_scores(host.context(), problem.args(weights, scores, picked)));
    const auto expected = problem.expected(picked);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      // One frame has one weight, whose deviation is that of rounding alone.
      const bool alone = i / static_cast<std::size_t>(problem.columns) >= 9 && problem.frames[i / 40] <= 1;
      if (!alone) {
        EXPECT_NEAR(scores[i], expected[i], 2e-4) << i;
      }
    }
  }
}

TEST(AlignmentScores, HeadsOfSeveralCallsAddUpToTheBitsOfOne) {
  Problem problem;
  Host host(2);
  std::vector<float> weights, together, apart;
  ASSERT_TRUE(alignment_scores(host.context(), problem.args(weights, together, {0, 1, 2})));
  bool adds = false;
  for (const std::vector<int>& each : {std::vector<int>{0}, {}, {1, 2}}) {
    auto args = problem.args(weights, apart, each);
    args.heads = each;
    args.share = 1.0f / 3;
    args.adds = adds;
    ASSERT_TRUE(alignment_scores(host.context(), args));
    adds = true;
  }
  EXPECT_EQ(apart, together);
}

TEST(AlignmentScores, ARowsBitsAreItsOwn) {
  Problem problem;
  Host host(2), alone(1);
  std::vector<float> weights, scores, own_weights, own;
  const std::vector<int> picked = {0, 2};
  auto args = problem.args(weights, scores, picked);
  ASSERT_TRUE(alignment_scores(host.context(), args));
  const std::int32_t offsets[2] = {0, 7};
  const std::int64_t first = problem.offsets[3];
  auto one = problem.args(own_weights, own, picked);
  one.q = args.q.slice(first, first + 7);
  one.rows = {offsets, 1, 7};
  one.kv.slots = problem.slots.data() + 3;
  one.frames = args.frames.slice(first, first + 7);
  one.weights = one.weights.slice(0, 7);
  one.scores = one.scores.slice(0, 7);
  ASSERT_TRUE(alignment_scores(alone.context(), one));
  for (std::int64_t i = 0; i < 7 * problem.columns; ++i)
    ASSERT_EQ(own[static_cast<std::size_t>(i)], scores[static_cast<std::size_t>(first * problem.columns + i)]);
}

TEST(AlignmentScores, RefuseWhatDoesNotFit) {
  Problem problem;
  Host host;
  std::vector<float> weights, scores;
  const std::vector<int> outside = {3}, good = {1};
  EXPECT_FALSE(alignment_scores(host.context(), problem.args(weights, scores, outside)));
  auto args = problem.args(weights, scores, good);
  problem.slots[0] = 4;
  EXPECT_FALSE(alignment_scores(host.context(), args));
}

}  // namespace
}  // namespace mstar
