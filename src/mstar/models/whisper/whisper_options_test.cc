// The temperature ladder, clips and hotwords: how fields are read, and what becomes of a window's attempts.
#include "mstar/models/whisper/whisper_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "mstar/models/whisper/whisper_config.h"
#include "mstar/models/whisper/whisper_stages.h"

namespace mstar::models {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

Params fields(std::initializer_list<std::pair<const char*, ParamValue>> values) {
  Params out;
  for (const auto& [name, value] : values) out.set(name, value);
  return out;
}
WhisperOptions read(std::initializer_list<std::pair<const char*, ParamValue>> values) {
  auto options = WhisperOptions::read(fields(values));
  EXPECT_TRUE(options) << options.error().message;
  return options ? *options : WhisperOptions();
}

TEST(WhisperOptions, TemperaturesRiseToOneUnlessToldNotTo) {
  EXPECT_THAT(read({}).temperatures, ElementsAre(0, 0.2, 0.4, 0.6, 0.8, 1));
  EXPECT_THAT(read({{"temperature", 0.5}}).temperatures, ElementsAre(0.5, 0.7, 0.9));
  EXPECT_THAT(read({{"temperature", 1.0}}).temperatures, ElementsAre(1));
  EXPECT_THAT(read({{"temperature", 1.5}}).temperatures, ElementsAre(1.5));
  EXPECT_THAT(read({{"temperature_increment_on_fallback", std::int64_t{0}}}).temperatures, ElementsAre(0));
  EXPECT_THAT(read({{"temperature_increment_on_fallback", std::string("none")}}).temperatures, ElementsAre(0));
  EXPECT_THAT(read({{"max_tokens", std::int64_t{9}}}).temperatures, ElementsAre(0));
  EXPECT_THAT(read({{"temperature_increment_on_fallback", 0.5}}).temperatures, ElementsAre(0, 0.5, 1));
}

TEST(WhisperOptions, ThresholdsMayBeTakenAway) {
  EXPECT_EQ(read({}).log_prob_threshold, -1.0);
  EXPECT_EQ(read({{"logprob_threshold", -0.5}}).log_prob_threshold, -0.5);
  EXPECT_EQ(read({{"log_prob_threshold", std::string("none")}}).log_prob_threshold, std::nullopt);
  EXPECT_EQ(read({{"compression_ratio_threshold", std::string("2")}}).compression_ratio_threshold, 2.0);
  EXPECT_EQ(read({{"no_speech_threshold", std::string("null")}}).no_speech_threshold, std::nullopt);
}

TEST(WhisperOptions, ClipsAreSecondsInPairs) {
  constexpr int kEnd = WhisperOptions::kOpenEnd;
  EXPECT_THAT(read({}).clips, ElementsAre(Pair(0, kEnd)));
  EXPECT_THAT(read({{"clip_timestamps", std::string("1.5,3, 4.004 ,9")}}).clips,
              ElementsAre(Pair(150, 300), Pair(400, 900)));
  EXPECT_THAT(read({{"clip_timestamps", std::string("2")}}).clips, ElementsAre(Pair(200, kEnd)));
  EXPECT_THAT(read({{"clip_timestamps", std::vector<double>{0, 1, 1, 1, 5}}}).clips,
              ElementsAre(Pair(0, 100), Pair(500, kEnd)));
}

TEST(WhisperOptions, BadFieldsAreNamed) {
  const std::pair<const char*, ParamValue> bad[] = {
      {"temperature", -0.1},
      {"temperature", 2.5},
      {"temperature_increment_on_fallback", -1.0},
      {"temperature_increment_on_fallback", 0.001},
      {"temperature_increment_on_fallback", std::nan("")},
      {"compression_ratio_threshold", std::string("much")},
      {"no_speech_threshold", std::string("")},
      {"clip_timestamps", std::string("3,1")},
      {"clip_timestamps", std::string("a,b")},
      {"clip_timestamps", std::string("1,,2")},
      {"clip_timestamps", std::string("-1")},
      {"clip_timestamps", std::string("5,5")},
      {"clip_timestamps", std::string("nan")},
      {"clip_timestamps", std::string("1e300")},
      {"condition_on_previous_text", std::string("perhaps")},
  };
  for (const auto& [name, value] : bad) {
    const auto options = WhisperOptions::read(fields({{name, value}}));
    ASSERT_FALSE(options) << name;
    EXPECT_EQ(options.error().code, Code::invalid_request);
    EXPECT_EQ(options.error().field, name);
  }
}

TEST(WhisperOptions, WhatIsDoubtfulIsTriedAgainUnlessItIsSilence) {
  const WhisperOptions options;
  const auto again = [&](double likely, double ratio, double no_speech) {
    return needs_fallback(options, {.avg_logprob = likely, .compression_ratio = ratio}, no_speech);
  };
  EXPECT_FALSE(again(-0.5, 2.0, 0.1));
  EXPECT_TRUE(again(-1.1, 2.0, 0.1));
  EXPECT_TRUE(again(-0.5, 2.5, 0.1));
  EXPECT_TRUE(again(-0.5, 2.5, 0.9)) << "likely enough to be no silence";
  EXPECT_FALSE(again(-1.1, 2.0, 0.7)) << "silence";
  EXPECT_FALSE(again(-1.1, 9.0, 0.7)) << "silence, however repetitive";
  WhisperOptions off;
  off.log_prob_threshold = off.compression_ratio_threshold = std::nullopt;
  EXPECT_FALSE(needs_fallback(off, {.avg_logprob = -9, .compression_ratio = 9}, 0.1));
  EXPECT_TRUE(is_silent(options, {.avg_logprob = -1.5}, 0.7));
  EXPECT_FALSE(is_silent(options, {.avg_logprob = -0.5}, 0.7));
  EXPECT_FALSE(is_silent(options, {.avg_logprob = -1.5}, 0.5));
  EXPECT_TRUE(is_silent(off, {.avg_logprob = 0}, 0.7));
}

TEST(WhisperOptions, OfBadAttemptsTheLikeliestThatDoesNotRepeatItself) {
  const WhisperOptions options;
  const auto best = [&](std::vector<WindowAttempt> attempts) { return best_attempt(options, attempts); };
  EXPECT_EQ(best({{.avg_logprob = -0.2, .compression_ratio = 5},
                  {.avg_logprob = -1.4, .compression_ratio = 1},
                  {.avg_logprob = -1.2, .compression_ratio = 2}}),
            2u);
  EXPECT_EQ(best({{.avg_logprob = -0.4, .compression_ratio = 5}, {.avg_logprob = -0.2, .compression_ratio = 3}}), 1u);
  EXPECT_EQ(best({{.avg_logprob = std::nan("")}}), 0u);
}

// ---- the stage

class Windows {
 public:
  explicit Windows(Params params) {
    ModelSource source{.name = "seeded",
                       .directory = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/whisper_tiny_seeded/hf",
                       .checkpoint = {}};
    auto opened = weights::Checkpoint::open(source.directory);
    EXPECT_TRUE(opened) << opened.error().message;
    source.checkpoint = std::move(*opened);
    auto read = WhisperConfig::read(source);
    EXPECT_TRUE(read) << read.error().message;
    config = std::make_shared<const WhisperConfig>(std::move(*read));
    decl::RequestParams request;
    request.fields = std::move(params);
    stage_ = make_segment_stage(config, request);
  }

  // One try at the window from `seek`: one word of `score`, between timestamps of 0 and half a second.
  decl::HostOutputs attempt(float score, float no_speech = 0.1f, int seek = 0, int frames = 100) {
    const std::int32_t begin = config->tokens.timestamp_begin;
    const std::int32_t ids[] = {begin, word(), begin + 25};
    const std::int32_t window[] = {seek, frames, frames, 1000};
    const std::int32_t language[] = {-1};
    const float length = 10, scores[] = {score, score, score};
    const auto list = [](const auto& values, auto make) {
      std::vector<HostValue> out;
      for (std::size_t i = 1; i < 3; ++i) out.push_back(make(values[i]));
      return out;
    };
    const auto id = [](std::int32_t value) { return HostValue::i32({&value, 1}); };
    const auto number = [](float value) { return HostValue::f32({&value, 1}); };
    decl::HostInputs inputs;
    inputs.ports = {{HostValue::i32(window)},
                    {HostValue::i32(language)},
                    {id(ids[0])},
                    {number(scores[0])},
                    {number(no_speech)},
                    list(ids, id),
                    list(scores, number),
                    {number(length)}};
    auto out = stage_->run(inputs);
    EXPECT_TRUE(out) << out.error().message;
    return out ? std::move(*out) : decl::HostOutputs();
  }
  std::int32_t word() const {
    for (std::int32_t id = 0; id < config->tokens.eot; ++id) {
      const std::string text = config->tokenizer->decode({&id, 1});
      if (text.size() > 1 && std::isalpha(static_cast<unsigned char>(text.back()))) return id;
    }
    return -1;
  }
  std::shared_ptr<const WhisperConfig> config;

 private:
  std::unique_ptr<decl::HostStage> stage_;
};

std::int32_t number_of(const decl::HostOutputs& out, std::size_t port) {
  return out.ports[port].front().as<std::int32_t>()[0];
}
constexpr std::size_t kSegments = 0, kNext = 1, kHistory = 2, kAttempt = 4;

TEST(WhisperSegments, ADoubtfulWindowIsTriedHotterUntilItIsGood) {
  Windows windows({});
  auto out = windows.attempt(-3.0f);
  EXPECT_EQ(number_of(out, kAttempt), 1);
  EXPECT_TRUE(out.ports[kSegments].empty());
  out = windows.attempt(-2.0f);
  EXPECT_EQ(number_of(out, kAttempt), 2);
  out = windows.attempt(-0.5f);
  EXPECT_EQ(number_of(out, kAttempt), -1);
  ASSERT_EQ(out.ports[kSegments].size(), 1u);
  const auto segment = nlohmann::json::parse(out.ports[kSegments].front().text());
  EXPECT_NEAR(segment["temperature"].get<double>(), 0.4, 1e-9);
  EXPECT_NEAR(segment["avg_logprob"].get<double>(), -0.375, 1e-6);
  EXPECT_EQ(number_of(out, kNext), 100);
  EXPECT_FALSE(out.ports[kHistory].front().as<std::int32_t>().empty());
  // The next window begins anew.
  EXPECT_EQ(number_of(windows.attempt(-3.0f, 0.1f, 100), kAttempt), 1);
}

TEST(WhisperSegments, WhereNoneIsGoodTheLikeliestStandsAndIsNoPrompt) {
  Windows windows({});
  decl::HostOutputs out;
  for (const float score : {-3.0f, -2.0f, -1.6f, -4.0f, -5.0f, -6.0f}) out = windows.attempt(score);
  EXPECT_EQ(number_of(out, kAttempt), -1);
  ASSERT_EQ(out.ports[kSegments].size(), 1u);
  const auto segment = nlohmann::json::parse(out.ports[kSegments].front().text());
  EXPECT_NEAR(segment["avg_logprob"].get<double>(), -1.2, 1e-6);
  EXPECT_NEAR(segment["temperature"].get<double>(), 1.0, 1e-9) << "how far it went";
  EXPECT_TRUE(out.ports[kHistory].front().as<std::int32_t>().empty());
}

TEST(WhisperSegments, OneTemperatureIsOneTry) {
  Windows windows(fields({{"temperature_increment_on_fallback", std::int64_t{0}}}));
  const auto out = windows.attempt(-3.0f);
  EXPECT_EQ(number_of(out, kAttempt), -1);
  EXPECT_EQ(out.ports[kSegments].size(), 1u);
}

TEST(WhisperSegments, SilenceIsPassedOverAtOnce) {
  Windows windows({});
  const auto out = windows.attempt(-3.0f, 0.9f, 200, 77);
  EXPECT_EQ(number_of(out, kAttempt), -1);
  EXPECT_TRUE(out.ports[kSegments].empty());
  EXPECT_EQ(number_of(out, kNext), 277);
}

TEST(WhisperSegments, AClipBehindTheRecordingHasNothing) {
  Windows windows({});
  const auto out = windows.attempt(-0.1f, 0.1f, 5000, 0);
  EXPECT_TRUE(out.ports[kSegments].empty());
  EXPECT_GT(number_of(out, kNext), 5000);
}

TEST(WhisperOptions, WordsAreAskedForByEitherName) {
  const auto read = [](std::initializer_list<std::pair<const char*, ParamValue>> fields) {
    Params params;
    for (const auto& [name, value] : fields) params.set(name, value);
    return WhisperOptions::read(params);
  };
  EXPECT_FALSE(read({})->word_timestamps);
  EXPECT_TRUE(read({{"word_timestamps", std::string("true")}})->word_timestamps);
  EXPECT_TRUE(read({{"timestamp_granularities", std::vector<std::string>{"segment", "word"}}})->word_timestamps);
  EXPECT_FALSE(read({{"timestamp_granularities", std::string("segment")}})->word_timestamps);
  const auto all = read({{"word_timestamps", true},
                         {"hallucination_silence_threshold", 1.5},
                         {"prepend_punctuations", std::string("<")},
                         {"append_punctuations", std::string(">")}});
  ASSERT_TRUE(all);
  EXPECT_EQ(all->hallucination_silence_threshold, 1.5);
  EXPECT_EQ(all->prepend_punctuations, "<");
  EXPECT_EQ(all->append_punctuations, ">");
  for (const auto& [name, value] : {std::pair{"word_timestamps", ParamValue(std::string("maybe"))},
                                    std::pair{"prepend_punctuations", ParamValue(std::string(2000, '('))},
                                    std::pair{"hallucination_silence_threshold", ParamValue(-1.0)},
                                    std::pair{"hallucination_silence_threshold", ParamValue(std::string("long"))},
                                    std::pair{"hallucination_silence_threshold", ParamValue(2.0)}}) {  // without words
    const auto got = read({{name, value}});
    ASSERT_FALSE(got) << name;
    EXPECT_EQ(got.error().code, Code::invalid_request);
    EXPECT_EQ(got.error().field, name);
  }
}

}  // namespace
}  // namespace mstar::models
