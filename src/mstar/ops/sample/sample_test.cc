#include "mstar/ops/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

struct Drawn {
  std::vector<std::int32_t> tokens;
  std::vector<float> log_probs;
};

Drawn run(Host& host, std::vector<float> logits, std::int64_t num_rows, std::span<const SampleRow> rows) {
  Drawn out{std::vector<std::int32_t>(static_cast<std::size_t>(num_rows)),
            std::vector<float>(static_cast<std::size_t>(num_rows))};
  const std::int64_t vocabulary = static_cast<std::int64_t>(logits.size()) / num_rows;
  EXPECT_TRUE(
      sample(host.context(), {matrix(logits, num_rows, vocabulary), rows, vector(out.tokens), vector(out.log_probs)}));
  return out;
}

TEST(Sample, GreedyTakesTheLowestOfEqualsAndItsLogProbability) {
  on_every_target([&] {
    Host host;
    const SampleRow rows[1];
    const Drawn out = run(host, {0.0f, 2.0f, 1.0f, 2.0f}, 1, rows);
    EXPECT_EQ(out.tokens[0], 1);
    EXPECT_NEAR(out.log_probs[0], 2 - std::log(1 + 2 * std::exp(2.0) + std::exp(1.0)), 1e-6);
  });
}

TEST(Sample, MasksAndPenalties) {
  on_every_target([&] {
    Host host;
    const std::vector<float> logits = {5, 4, 3, 2, 1, -1};
    const std::int32_t suppress[] = {0, 77, -3}, more[] = {1}, seen[] = {2, 5};
    const TokenRange ranges[] = {{4, 99}};
    SampleRow rows[1];
    rows[0].suppress = suppress;
    rows[0].more_suppress = more;
    rows[0].suppress_ranges = ranges;
    Drawn out = run(host, logits, 1, rows);
    EXPECT_EQ(out.tokens[0], 2);
    EXPECT_NEAR(out.log_probs[0], -std::log(1 + std::exp(-1.0)), 1e-6);
    rows[0].seen = seen;
    rows[0].repetition_penalty = 2.0f;  // 3 -> 1.5, once
    EXPECT_EQ(run(host, logits, 1, rows).tokens[0], 3);
    const TokenRange all[] = {{0, 6}};
    rows[0].suppress_ranges = all;
    out = run(host, logits, 1, rows);
    EXPECT_EQ(out.tokens[0], 0);
    EXPECT_EQ(out.log_probs[0], -INFINITY);
  });
}

TEST(Sample, TailIsPreferredWhenItsSumBeatsTheLikeliestHead) {
  on_every_target([&] {
    Host host;
    SampleRow rows[1];
    rows[0].tail_begin = 2;
    // Tail e^1 + e^1 = 5.4 < e^2 = 7.4; with a third, 8.2 >.
    EXPECT_EQ(run(host, {2, 0, 1, 1, -50}, 1, rows).tokens[0], 0);
    const Drawn out = run(host, {2, 0, 1, 1, 1}, 1, rows);
    EXPECT_EQ(out.tokens[0], 2);
    EXPECT_NEAR(out.log_probs[0], -std::log(3.0), 1e-6);
    // A masked tail changes nothing.
    const TokenRange tail[] = {{2, 5}};
    rows[0].suppress_ranges = tail;
    EXPECT_EQ(run(host, {2, 0, 1, 1, 1}, 1, rows).tokens[0], 0);
  });
}

TEST(Philox, MatchesThePublishedVectors) {
  // Random123 kat_vectors, philox4x32 10.
  const PhiloxWords zero = philox(0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const PhiloxWords ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(Sample, FrequenciesFollowTheProbabilities) {
  on_every_target([&] {
    Host host(2);
    const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
    const auto frequencies = [&](SampleRow row) {
      constexpr int kDraws = 20000;
      std::vector<float> many;
      std::vector<SampleRow> rows(kDraws, row);
      for (int i = 0; i < kDraws; ++i) {
        many.insert(many.end(), logits.begin(), logits.end());
        rows[static_cast<std::size_t>(i)].offset = static_cast<std::uint64_t>(i);
      }
      std::map<int, double> out;
      for (const std::int32_t token : run(host, many, kDraws, rows).tokens) out[token] += 1.0 / kDraws;
      return out;
    };
    SampleRow row;
    row.temperature = 1.0f;
    row.seed = 42;
    auto all = frequencies(row);
    EXPECT_NEAR(all[0], 0.5, 0.015);
    EXPECT_NEAR(all[2], 0.15, 0.015);
    EXPECT_NEAR(all[3], 0.05, 0.01);
    row.top_k = 2;
    auto two = frequencies(row);
    EXPECT_EQ(two.size(), 2u);
    EXPECT_NEAR(two[0], 0.625, 0.015);
    row.top_k = 0;
    row.top_p = 0.79f;  // 0.5 + 0.3 reaches it
    EXPECT_EQ(frequencies(row).size(), 2u);
    row.top_p = 0.81f;
    EXPECT_EQ(frequencies(row).size(), 3u);
    row.top_p = 1.0f;
    row.min_p = 0.29f;  // keeps what has at least 0.145
    EXPECT_EQ(frequencies(row).size(), 3u);
    row.min_p = 0;
    row.temperature = 0.5f;  // squares: 0.25 : 0.09 : 0.0225 : 0.0025
    EXPECT_NEAR(frequencies(row)[0], 0.25 / 0.365, 0.015);
  });
}

TEST(Sample, ARowDoesNotDependOnOthersAndRepeats) {
  on_every_target([&] {
    Host host(3), single(1);
    const std::int64_t vocabulary = 1000;
    const auto logits = random_floats(8 * vocabulary, 9);
    std::vector<SampleRow> rows(8);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r].temperature = r % 2 ? 0.8f : 0.0f;
      rows[r].top_p = 0.9f;
      rows[r].seed = r;
      rows[r].offset = 3;
    }
    const Drawn together = run(host, logits, 8, rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto begin = logits.begin() + static_cast<std::int64_t>(r) * vocabulary;
      const Drawn alone = run(single, std::vector<float>(begin, begin + vocabulary), 1, std::span(rows).subspan(r, 1));
      EXPECT_EQ(alone.tokens[0], together.tokens[r]);
      EXPECT_EQ(alone.log_probs[0], together.log_probs[r]);
    }
  });
}

TEST(TokenProbabilities, OverTheVocabularyOrAmongThemselves) {
  on_every_target([&] {
    Host host;
    std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f), std::log(2.0f)};
    const std::int32_t ids[] = {3, 2}, bad[] = {4};
    Guarded out(1, 2);
    ASSERT_TRUE(token_probabilities(host.context(), {matrix(logits, 1, 4), ids, false, out.view()}));
    EXPECT_NEAR(out.at(0, 0), 0.2, 1e-6);
    EXPECT_NEAR(out.at(0, 1), 0.5, 1e-6);
    ASSERT_TRUE(token_probabilities(host.context(), {matrix(logits, 1, 4), ids, true, out.view()}));
    EXPECT_NEAR(out.at(0, 0), 2.0 / 7, 1e-6);
    EXPECT_TRUE(out.guards_intact());
    Guarded one(1, 1);
    EXPECT_EQ(token_probabilities(host.context(), {matrix(logits, 1, 4), bad, false, one.view()}).error().code,
              Code::bad_model);
  });
}

}  // namespace
}  // namespace mstar
