// Decoder language models against golden values of transformers: very small random models through the engine, logits,
// greedy tokens and recurrent states (tools/golden/seeded_decoders.py).
#include <gtest/gtest.h>

#include "mstar/models/text_decoder_fixture.h"

namespace mstar::models {
namespace {

using namespace text_decoder_fixture;

// Of logits and states: |got - wanted| <= kTolerance * (1 + |wanted|).
constexpr double kTolerance = 1e-4;

struct Case {
  const char* name;  // of the golden's directory
  const char* file;  // in it; empty: the directory as a checkpoint
  const char* weights = "stored";
};

class TextDecoderGolden : public testing::TestWithParam<Case> {
 protected:
  static Params options() {
    Params out;
    out.set("weights", std::string(GetParam().weights));
    return out;
  }
  static fs::path path() {
    const fs::path directory = kGolden / GetParam().name;
    return *GetParam().file ? directory / GetParam().file : directory;
  }
};

// The four prompts are rows of one batch, so that rows of 1, 3, 70 and 37 tokens lie side by side.
TEST_P(TextDecoderGolden, LogitsTokensAndStatesEqualTheReference) {
  const Golden golden(GetParam().name);
  Model model(path(), options());
  std::vector<std::pair<int, std::vector<std::int32_t>>> ids;
  for (std::size_t p = 0; p < golden.prompts.size(); ++p) ids.push_back({static_cast<int>(p) + 1, golden.prompts[p]});
  double worst = 0, worst_state = 0;
  for (std::size_t s = 0; s < golden.tokens[0].size(); ++s) {
    const auto drawn = model.step(s == 0 ? "prefill" : "decode", ids);
    for (std::size_t p = 0; p < ids.size(); ++p) {
      ASSERT_EQ(drawn[p].token, golden.tokens[p][s]) << "prompt " << p << " step " << s;
      worst = std::max(worst, worst_error(drawn[p].log_probs, golden.log_probs(p, s)));
      ids[p].second = {drawn[p].token};
      const std::string key = "." + std::to_string(p) + "." + std::to_string(s);
      const std::vector<float> conv = golden.array("conv" + key), rule = golden.array("rule" + key);
      if (conv.empty() || *GetParam().file) continue;  // a GGUF file has the value heads in another order
      worst_state = std::max(worst_state, worst_error(model.state(static_cast<int>(p) + 1, 0), conv));
      worst_state = std::max(worst_state, worst_error(model.state(static_cast<int>(p) + 1, 1), rule));
    }
  }
  EXPECT_LT(worst, kTolerance);
  EXPECT_LT(worst_state, kTolerance);
  RecordProperty("worst_error", std::to_string(worst));
  RecordProperty("worst_state_error", std::to_string(worst_state));
}

// A prompt in parts gives the bits of the whole, and so does a row among others.
TEST_P(TextDecoderGolden, BitsDependNeitherOnPartsNorOnTheBatch) {
  const Golden golden(GetParam().name);
  Model together(path(), options()), alone(path(), options(), 1);
  const auto& prompt = golden.prompts[2];
  const auto whole = together.step("prefill", {{1, golden.prompts[3]}, {2, prompt}, {3, golden.prompts[0]}});
  Drawn last;
  auto at = prompt.begin();
  for (const int count : {1, 2, 16, 33, 18}) {
    last = alone.step("prefill", {{1, {at, at + count}}})[0];
    at += count;
  }
  ASSERT_EQ(at, prompt.end());
  EXPECT_EQ(last.token, whole[1].token);
  EXPECT_EQ(last.log_probs, whole[1].log_probs);
  for (const int index : {0, 1}) EXPECT_EQ(alone.state(1, index), together.state(2, index));
}

// Prompts in parts, and pages that are too few for all: the youngest lose theirs and are computed again, recurrent
// states too.
TEST_P(TextDecoderGolden, PreemptedRequestsGetTheTokensOfThoseThatAreNot) {
  const Golden golden(GetParam().name);
  Params few_pages = options();
  few_pages.set("kv_tokens", std::int64_t{9 * 16});
  Model roomy(path(), options(), 1), tight(path(), few_pages, 1, 32);
  const std::vector<std::vector<std::int32_t>> prompts = {golden.prompts[3], golden.prompts[2], golden.prompts[0],
                                                          golden.prompts[1]};
  const auto wanted = roomy.generate(prompts, kMaxTokens);
  const auto got = tight.generate(prompts, kMaxTokens);
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(std::vector(got[1].begin(), got[1].begin() + 12), golden.tokens[2]);
  EXPECT_EQ(roomy.num_parts(), 0);
  EXPECT_GT(tight.num_parts(), 2);
  EXPECT_EQ(roomy.kv().num_preempted, 0);
  EXPECT_GT(tight.kv().num_preempted, 1);
}

// Found pages, and beside them snapshots of recurrent states where there are any: the bits of what is computed.
TEST_P(TextDecoderGolden, PromptsThatGoOnFromTheCacheGetTheTokensOfThoseThatDoNot) {
  const Golden golden(GetParam().name);
  Params cached = options(), uncached = options();
  cached.set("snapshot_tokens", std::int64_t{32});
  cached.set("state_snapshots", std::int64_t{8});
  uncached.set("prefix_cache", false);
  Model with(path(), cached, 2, 48), without(path(), uncached, 1);
  auto longer = golden.prompts[2];
  longer.insert(longer.end(), golden.prompts[0].begin(), golden.prompts[0].end());
  longer.insert(longer.end(), golden.prompts[1].begin(), golden.prompts[1].end());
  const std::vector<std::vector<std::int32_t>> prompts = {golden.prompts[2], longer, golden.prompts[2],
                                                          golden.prompts[3]};
  const auto wanted = without.generate(prompts, kMaxTokens);
  for (int turn = 0; turn < 3; ++turn) {
    const auto before = with.kv().found_tokens;
    EXPECT_EQ(with.generate(prompts, kMaxTokens), wanted);
    // A prompt of 70 tokens goes on from 48 at least, and without a state from 64.
    EXPECT_GE(with.kv().found_tokens - before, turn == 0 ? 48 : 3 * 48) << turn;
    for (int i = 1; i <= kNumPrompts; ++i) with.add_again(i);
  }
  EXPECT_EQ(without.kv().found_tokens, 0);
  EXPECT_EQ(with.kv().num_snapshots > 3, std::string(GetParam().name).starts_with("qwen35"));
}

INSTANTIATE_TEST_SUITE_P(Seeded, TextDecoderGolden,
                         testing::Values(Case{"llama", ""}, Case{"qwen2", ""}, Case{"qwen3", ""}, Case{"qwen35", ""},
                                         Case{"qwen35", "", "f32"}, Case{"qwen35", "model.gguf"},
                                         Case{"qwen35_tied", ""}),
                         [](const auto& each) {
                           return std::string(each.param.name) + (*each.param.file ? "_gguf_" : "_") +
                                  each.param.weights;
                         });

// States kept in 16 bits cost some digits, not more.
TEST(TextDecoderGoldenStates, HalfStatesStayClose) {
  const Golden golden("qwen35");
  Params options;
  options.set("state", std::string("bf16"));
  Model model(kGolden / "qwen35", options);
  const auto drawn = model.step("prefill", {{1, golden.prompts[2]}});
  EXPECT_LT(worst_error(drawn[0].log_probs, golden.log_probs(2, 0)), 0.1);
  EXPECT_GT(worst_error(drawn[0].log_probs, golden.log_probs(2, 0)), kTolerance);
}

}  // namespace
}  // namespace mstar::models
