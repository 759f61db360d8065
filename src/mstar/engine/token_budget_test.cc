#include "mstar/engine/token_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace mstar::engine {
namespace {

using Shares = std::vector<int>;

TEST(TokenBudget, OneTokenRowsComeFirstAndTheOthersShareTheRest) {
  const std::vector<TokenWish> rows = {{0, 100}, {7, 1}, {0, 100}, {40, 1}};
  EXPECT_EQ(share_tokens(rows, {.tokens = 66, .rows = 8, .grain = 16}), (Shares{32, 1, 32, 1}));
  EXPECT_EQ(share_tokens(rows, {.tokens = 50, .rows = 8, .grain = 16}), (Shares{32, 1, 16, 1}));  // 24 each, rounded
}

TEST(TokenBudget, WhoWantsLittleLeavesTheRestToTheOthers) {
  const std::vector<TokenWish> rows = {{0, 1000}, {0, 5}, {0, 40}, {0, 1000}};
  EXPECT_EQ(share_tokens(rows, {.tokens = 205, .rows = 8, .grain = 16}), (Shares{80, 5, 40, 80}));
}

TEST(TokenBudget, PromptsThatComeTogetherAreDoneOneAfterTheOther) {
  const std::vector<TokenWish> equal(5, {0, 640});
  EXPECT_EQ(share_tokens(equal, {.tokens = 2048, .rows = 8, .grain = 16, .least_share = 1024}),
            (Shares{640, 640, 640, 0, 0}));
  EXPECT_EQ(share_tokens(equal, {.tokens = 2048, .rows = 8, .grain = 16, .least_share = 512}),
            (Shares{512, 512, 512, 512, 0}));
  const std::vector<TokenWish> behind_a_long_one = {{0, 100'000}, {0, 640}, {0, 640}};
  EXPECT_EQ(share_tokens(behind_a_long_one, {.tokens = 2048, .rows = 8, .grain = 16, .least_share = 1024}),
            (Shares{1408, 640, 0}));
}

TEST(TokenBudget, ShortPromptsDoNotWaitForLongOnes) {
  const StepBudget budget{.tokens = 2048, .rows = 8, .grain = 16, .least_share = 1024};
  const std::vector<TokenWish> behind_two = {{9, 1}, {0, 100'000}, {0, 100'000}, {0, 640}, {0, 640}, {0, 90}};
  EXPECT_EQ(share_tokens(behind_two, budget), (Shares{1, 1312, 0, 640, 0, 90}));
  const std::vector<TokenWish> behind_equals = {{0, 640}, {0, 640}, {0, 640}, {0, 640}, {0, 100}};
  EXPECT_EQ(share_tokens(behind_equals, budget), (Shares{640, 640, 640, 0, 100}));
}

TEST(TokenBudget, WhatIsLeftOfAStepIsNoReasonToBeginAPrompt) {
  const StepBudget budget{.tokens = 2048, .rows = 8, .grain = 16, .least_share = 1024};
  EXPECT_EQ(late_part({0, 640}, 128, budget), 0);
  EXPECT_EQ(late_part({0, 100}, 128, budget), 100);
  EXPECT_EQ(late_part({0, 5000}, 1030, budget), 1024);
  EXPECT_EQ(late_part({0, 5000}, 1020, budget), 0);
}

TEST(TokenBudget, PartsEndAtMultiplesOfTheGrainWhereverTheyBegin) {
  EXPECT_EQ(share_tokens(std::vector<TokenWish>{{5, 100}}, {.tokens = 30, .rows = 1, .grain = 16}), (Shares{27}));
  EXPECT_EQ(share_tokens(std::vector<TokenWish>{{5, 100}}, {.tokens = 16, .rows = 1, .grain = 16}), (Shares{11}));
  EXPECT_EQ(share_tokens(std::vector<TokenWish>{{5, 20}}, {.tokens = 30, .rows = 1, .grain = 16}), (Shares{20}));
}

TEST(TokenBudget, PartsEndOnTheGridWhereThatKeepsHalfOfThem) {
  const auto share = [](TokenWish row, int tokens) {
    return share_tokens(std::vector<TokenWish>{row}, {.tokens = tokens, .rows = 4, .grain = 4, .grid = 16}).front();
  };
  EXPECT_EQ(share({0, 100}, 30), 16);
  EXPECT_EQ(share({0, 100}, 47), 32);
  EXPECT_EQ(share({0, 100}, 15), 12) << "it does not reach it";
  EXPECT_EQ(share({12, 100}, 8), 4);
  EXPECT_EQ(share({12, 100}, 9), 8) << "4 would be less than half";
  EXPECT_EQ(share({16, 100}, 15), 12);
  EXPECT_EQ(share({0, 30}, 30), 30) << "all that it wants";
  // What the rounding leaves is the next one's.
  const std::vector<TokenWish> two = {{0, 100}, {0, 100}};
  EXPECT_EQ(share_tokens(two, {.tokens = 60, .rows = 4, .grain = 4, .grid = 16}), (Shares{32, 16}));
}

TEST(TokenBudget, LongerRowsAreNotStarvedByRowsOfOneToken) {
  std::vector<TokenWish> rows(40, {9, 1});
  rows.push_back({0, 64});
  const Shares shares = share_tokens(rows, {.tokens = 32, .rows = 64, .grain = 16});
  EXPECT_EQ(shares.back(), 16);
  EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), 32);
  EXPECT_EQ(share_tokens(rows, {.tokens = 512, .rows = 8, .grain = 16}).back(), 64);
}

TEST(TokenBudget, NeverOverNeverEmptyNeverLessThanAFairShareButForRounding) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 3000; ++round) {
    const int grain = 1 << below(5);
    const int grid = below(2) ? 0 : grain << below(3);
    const StepBudget budget{.tokens = grain + below(200), .rows = 1 + below(10), .grain = grain, .grid = grid};
    std::vector<TokenWish> rows;
    for (int i = 0; i < 1 + below(14); ++i)
      rows.push_back({below(4) ? below(9) * grain : below(100), below(2) ? 1 : 1 + below(150)});
    const Shares shares = share_tokens(rows, budget);
    int sum = 0, num_rows = 0, num_longer = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      sum += shares[i];
      num_rows += shares[i] > 0;
      num_longer += rows[i].tokens > 1;
      ASSERT_LE(shares[i], rows[i].tokens);
      const int end = rows[i].begin + shares[i];
      ASSERT_TRUE(shares[i] == 0 || shares[i] == rows[i].tokens || end % grain == 0);
      const int on_grid = grid > 0 ? end / grid * grid - rows[i].begin : 0;
      ASSERT_TRUE(2 * on_grid <= shares[i] + grain || shares[i] == rows[i].tokens || end % grid == 0);
    }
    ASSERT_LE(sum, budget.tokens);
    ASSERT_LE(num_rows, budget.rows);
    ASSERT_GT(sum, 0);
    if (budget.rows <= static_cast<int>(rows.size()) || budget.tokens <= grain || num_longer == 0) continue;
    const int fair = (budget.tokens - static_cast<int>(rows.size()) + num_longer) / num_longer;
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (rows[i].tokens > 1) {
        ASSERT_GT(shares[i], std::min(rows[i].tokens, fair) - std::max(grain, grid)) << round;
      }
  }
}

TEST(TokenBudget, LongStepsGrowWithTheRowsThatAnswer) {
  EXPECT_EQ(tokens_of_step(512, 3), 512);
  EXPECT_EQ(tokens_of_step(kLongStep, 0), 1600);
  EXPECT_EQ(tokens_of_step(kLongStep, 20), 1600 + 16 * 20);
  EXPECT_EQ(tokens_of_step(kLongStep, 76), kLongStep);
  EXPECT_EQ(tokens_of_step(kLongStep, 200), kLongStep);
}

}  // namespace
}  // namespace mstar::engine
