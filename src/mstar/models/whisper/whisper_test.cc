// Whisper against golden values of the reference: a seeded tiny model in every weight format, port by port, and the
// text rules.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/models/whisper/whisper_seeded_fixture.h"
#include "mstar/models/whisper/whisper_text.h"

namespace mstar::models {
namespace {

using namespace whisper_fixture;

struct FormatCase {
  const char* format;
  const char* storage;
  const char* encoder_port;  // which golden the encoder must give
  const char* greedy;        // which list of greedy.json; null: int8 arithmetic, whose tokens no float reference gives
  double tolerance;
};

class WhisperFormats : public testing::TestWithParam<FormatCase> {};

TEST_P(WhisperFormats, PortsAndGreedyTokensEqualTheReference) {
  const FormatCase& c = GetParam();
  Seeded model(c.format, c.storage);
  auto ports = weights::Checkpoint::open(kGolden / "ports.safetensors");
  ASSERT_TRUE(ports);
  auto states = model.run(0, "listen", {{golden_port(**ports, "mel")}});
  auto computed = states[0][0].to_host();
  ASSERT_TRUE(computed);
  EXPECT_LT(largest_difference(*computed, golden_port(**ports, c.encoder_port)), c.tolerance);
  const auto context = model.run(1, "listen", {{states[0][0]}});
  EXPECT_EQ(context[0][0].host.as<std::int32_t>()[0], 50);

  if (!c.greedy) return;
  std::ifstream file(kGolden / "greedy.json");
  const auto greedy = nlohmann::json::parse(file)[c.greedy];
  for (const char* name : {"plain", "german", "after_text"}) {
    const auto& wanted = greedy[name];
    const auto prompt = wanted["prompt"].get<std::vector<std::int32_t>>();
    const auto tokens = wanted["tokens"].get<std::vector<std::int32_t>>();
    auto out = model.run(2, "prompt", {{HostValue::i32(prompt)}});
    EXPECT_NEAR(out[2][0].host.as<float>()[0], wanted["no_speech_prob"].get<double>(), 1e-5) << name;
    double score = out[1][0].host.as<float>()[0];
    Value token = out[0][0];
    std::vector<std::int32_t> got = {token.host.as<std::int32_t>()[0]};
    while (got.size() < tokens.size()) {
      out = model.run(2, "decode", {{token}});
      token = out[0][0];
      got.push_back(token.host.as<std::int32_t>()[0]);
      score += out[1][0].host.as<float>()[0];
    }
    EXPECT_EQ(got, tokens) << c.format << " " << name;
    // The reference's score counts the end token, which is not among its tokens.
    out = model.run(2, "decode", {{token}});
    score += out[1][0].host.as<float>()[0];
    EXPECT_NEAR(score / static_cast<double>(tokens.size()), wanted["score"].get<double>(), 1e-3)
        << c.format << " " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeded, WhisperFormats,
                         testing::Values(FormatCase{"ct2_f32", "stored", "encoder_out", "float", 2e-4},
                                         FormatCase{"hf", "stored", "encoder_out", "float", 2e-4},
                                         FormatCase{"ct2_f16", "stored", "encoder_out", "float", 5e-3},
                                         FormatCase{"ct2_int8", "f32", "int8_encoder_out", "int8", 2e-4},
                                         FormatCase{"ct2_int8", "stored", "int8_encoder_out", nullptr, 0.2},
                                         FormatCase{"ct2_f32", "i8", "int8_encoder_out", nullptr, 0.2}),
                         [](const auto& each) { return std::string(each.param.format) + "_" + each.param.storage; });

TEST(WhisperFormats, LanguageProbabilitiesEqualTheReference) {
  Seeded model("ct2_f32");
  auto ports = weights::Checkpoint::open(kGolden / "ports.safetensors");
  ASSERT_TRUE(ports);
  auto states = model.run(0, "detect", {{golden_port(**ports, "mel")}});
  model.run(1, "detect", {{states[0][0]}});
  const std::int32_t sot[1] = {451};
  const auto out = model.run(2, "detect", {{}, {HostValue::i32(sot)}});
  EXPECT_LT(largest_difference(out[0][0].host, golden_port(**ports, "language_probs")), 1e-4);
}

WhisperTokens small_tokens() {
  WhisperTokens t;
  t.eot = 10;
  t.sot = 11;
  t.transcribe = 14;
  t.translate = 13;
  t.sot_prev = 15;
  t.no_speech = 16;
  t.no_timestamps = 17;
  t.timestamp_begin = 18;
  t.vocab = 18 + 1501;
  t.multilingual = true;
  return t;
}

TEST(WhisperText, SplitsAtPairsAndContinuesAtTheLastClosedTime) {
  const WhisperTokens t = small_tokens();
  const std::int32_t b = t.timestamp_begin;
  const std::vector<std::int32_t> tokens = {b, 1, 2, b + 100, b + 100, 3, b + 250, b + 250, 4};
  const WindowSplit split = split_window(t, tokens, 500, 3000);
  ASSERT_EQ(split.segments.size(), 2u);
  EXPECT_DOUBLE_EQ(split.segments[0].start_s, 5.0);
  EXPECT_DOUBLE_EQ(split.segments[0].end_s, 7.0);
  EXPECT_DOUBLE_EQ(split.segments[1].end_s, 10.0);
  EXPECT_EQ(split.advance_frames, 500);
}

TEST(WhisperText, ASingleTimeAtTheEndTakesTheWholeWindow) {
  const WhisperTokens t = small_tokens();
  const std::int32_t b = t.timestamp_begin;
  const std::vector<std::int32_t> closed = {b, 1, b + 50, b + 50, 2, b + 75};
  EXPECT_EQ(split_window(t, closed, 0, 1234).advance_frames, 1234);
  EXPECT_EQ(split_window(t, closed, 0, 1234).segments.size(), 2u);
  const std::vector<std::int32_t> one = {b + 10, 1, b + 50};
  const WindowSplit split = split_window(t, one, 100, 800);
  ASSERT_EQ(split.segments.size(), 1u);
  EXPECT_DOUBLE_EQ(split.segments[0].start_s, 1.0);
  EXPECT_DOUBLE_EQ(split.segments[0].end_s, 2.0);
  EXPECT_EQ(split.advance_frames, 800);
  EXPECT_DOUBLE_EQ(split_window(t, {}, 100, 800).segments[0].end_s, 9.0);
}

TEST(WhisperText, RulesKeepTimesInPairsAndInOrder) {
  const WhisperTokens t = small_tokens();
  const std::int32_t b = t.timestamp_begin;
  std::vector<TokenRange> ranges;
  DecodingState state;
  const auto allowed = [&](std::int32_t id) {
    SampleRow row;
    apply_decoding_rules(state, t, ranges, row);
    for (const TokenRange& range : row.suppress_ranges)
      if (range.begin <= id && id < range.end) return false;
    return true;
  };
  EXPECT_FALSE(allowed(1));
  EXPECT_TRUE(allowed(b + 50));
  EXPECT_FALSE(allowed(b + 51));
  state.push(b + 3, t);
  EXPECT_TRUE(allowed(1));  // one time so far counts as a closed pair: text must follow
  EXPECT_FALSE(allowed(b + 4));
  state.push(1, t);
  EXPECT_FALSE(allowed(b + 3));
  EXPECT_TRUE(allowed(b + 4));
  state.push(b + 4, t);
  EXPECT_FALSE(allowed(1));
  EXPECT_TRUE(allowed(t.eot));
  EXPECT_TRUE(allowed(b + 4));
  EXPECT_FALSE(allowed(b + 3));
  EXPECT_FALSE(allowed(t.no_timestamps));
}

TEST(WhisperText, ThePromptCarriesAtMost223TokensOfHistory) {
  const WhisperTokens t = small_tokens();
  EXPECT_EQ(window_prompt(t, {}, 12, true), (std::vector<std::int32_t>{11, 12, 13}));
  const std::vector<std::int32_t> history(300, 5);
  const auto prompt = window_prompt(t, history, 12, false);
  EXPECT_EQ(prompt.size(), 1u + 223u + 3u);
  EXPECT_EQ(prompt.front(), t.sot_prev);
  EXPECT_EQ(prompt.back(), t.transcribe);
}

TEST(WhisperText, CompressionRatioIsThatOfZlib) {
  EXPECT_EQ(compression_ratio(""), 0);
  EXPECT_NEAR(compression_ratio(std::string(1000, 'a')), 1000.0 / 17.0, 1e-9);
}

}  // namespace
}  // namespace mstar::models
