#include "mstar/ops/score_tokens/score_tokens.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(ScoreTokens, TellsOfEachTokenThatFollowsTheLead) {
  constexpr std::int64_t kVocabulary = 50, kTokens = 12;
  constexpr int kLead = 2, kIds = 40;
  Host host(2);
  auto logits = random_floats(kTokens * kVocabulary, 3, 2.0f);
  std::vector<std::int32_t> ids = {41, 42, 43, 7, 8, 45, 41, 42, 43, 39, 0, 45};
  const std::vector<std::int32_t> offsets = {0, 6, 12};
  std::vector<float> out(6, -1.0f);
  // In pieces, as a step makes its logits.
  for (std::int64_t begin = 0; begin < kTokens; begin += 5) {
    const std::int64_t end = std::min(kTokens, begin + 5);
    ASSERT_TRUE(score_tokens(host.context(), {.logits = TensorView(logits.data() + begin * kVocabulary, DType::f32,
                                                                   {end - begin, kVocabulary}),
                                              .first_token = begin,
                                              .ids = TensorView(ids.data(), DType::i32, {kTokens}),
                                              .rows = {offsets.data(), 2, kTokens},
                                              .lead = kLead,
                                              .num_ids = kIds,
                                              .out = TensorView(out.data(), DType::f32, {6})}));
  }
  std::size_t at = 0;
  for (const std::int64_t token : {2, 3, 4, 8, 9, 10}) {
    double sum = 0;
    for (int i = 0; i < kIds; ++i) sum += std::exp(logits[static_cast<std::size_t>(token * kVocabulary + i)]);
    const std::int32_t target = ids[static_cast<std::size_t>(token + 1)];
    const double expected =
        target < kIds ? std::exp(logits[static_cast<std::size_t>(token * kVocabulary + target)]) / sum : 0.0;
    EXPECT_NEAR(out[at++], expected, 1e-6) << token;
  }
}

TEST(ScoreTokens, RefusesWhatDoesNotFit) {
  Host host;
  std::vector<float> logits(20), out(1);
  std::vector<std::int32_t> ids(4);
  const std::vector<std::int32_t> offsets = {0, 4};
  ScoreTokensArgs args{.logits = TensorView(logits.data(), DType::f32, {2, 10}),
                       .first_token = 2,
                       .ids = TensorView(ids.data(), DType::i32, {4}),
                       .rows = {offsets.data(), 1, 4},
                       .lead = 2,
                       .num_ids = 10,
                       .out = TensorView(out.data(), DType::f32, {1})};
  EXPECT_TRUE(score_tokens(host.context(), args));
  args.num_ids = 11;
  EXPECT_FALSE(score_tokens(host.context(), args));
  args.num_ids = 10;
  args.first_token = 3;
  EXPECT_FALSE(score_tokens(host.context(), args));
}

}  // namespace
}  // namespace mstar
