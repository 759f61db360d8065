// Whisper's side of a request on the host: what intake keeps of its fields, the reading of its recording, and what is
// refused when a model is loaded.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "mstar/models/whisper/whisper.h"
#include "mstar/models/whisper/whisper_body.h"
#include "mstar/models/whisper/whisper_stages.h"
#include "mstar/models/whisper/whisper_text.h"
#include "mstar/models/whisper/whisper_wav_fixture.h"

namespace mstar::models {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/whisper_tiny_seeded";

// The seeded checkpoint of one second's windows.
ModelSource seeded() {
  ModelSource source{.name = "seeded", .directory = kGolden / "hf", .checkpoint = {}};
  auto opened = weights::Checkpoint::open(source.directory);
  EXPECT_TRUE(opened) << opened.error().message;
  source.checkpoint = std::move(*opened);
  return source;
}

std::shared_ptr<const WhisperConfig> seeded_config() {
  auto config = WhisperConfig::read(seeded());
  EXPECT_TRUE(config) << config.error().message;
  return std::make_shared<const WhisperConfig>(std::move(*config));
}

Result<decl::Intake> take_in(const decl::Decl& declared, const std::string& prompt) {
  decl::ApiRequest request;
  request.route = decl::Route::audio_transcriptions;
  request.text = prompt;
  request.media.push_back({.modality = decl::Modality::audio, .bytes = wav(16000)});
  return declared.surface_for(request.route)->intake(request);
}

TEST(WhisperRequest, APromptIsEncodedOnceAndCutToWhatCounts) {
  auto declared = declare_whisper(seeded());
  ASSERT_TRUE(declared) << declared.error().message;
  const auto config = seeded_config();
  std::string text;
  while (text.size() < (std::size_t{8} << 20)) text += "The quick brown fox, h\xC3\xA9 said. ";
  for (const std::string& prompt : {std::string("\n A novel. "), text, text + "x", text + "xy"}) {
    auto intake = take_in(*declared, prompt);
    ASSERT_TRUE(intake) << intake.error().message;
    const auto history = prompt_history(intake->params);
    // The tail of the whole text's tokens: 16 KiB of it stand for the 8 MiB here.
    std::string tail = prompt.size() > 16384 ? prompt.substr(prompt.size() - 16384) : prompt.substr(2);
    tail.erase(tail.find_last_not_of(' ') + 1);
    auto wanted = config->tokenizer->encode(" " + tail, {.parse_added = false});
    if (wanted.size() > 223) wanted.erase(wanted.begin(), wanted.end() - 223);
    EXPECT_EQ(history, wanted);
    for (const auto& [name, value] : intake->params.fields.values())
      EXPECT_FALSE(std::holds_alternative<std::string>(value)) << name;  // nothing is left to encode

    const std::map<decl::PortRef, std::vector<HostValue>> kept;
    const std::map<decl::PortRef, decl::StreamCounts> streams;
    const std::map<std::string, decl::LoopEnd> loop_ends;
    intake->params.fields.set("language", std::string("en"));
    const auto plan = declared->partitions().at(0).plan(intake->params);
    auto first = plan->next(
        {.params = intake->params, .finished = {}, .kept = kept, .streams = streams, .loop_ends = loop_ends});
    ASSERT_TRUE(first);
    const auto ids = std::get<decl::NextWalk>(*first).inputs.at(0).second.at(0).as<std::int32_t>();
    EXPECT_EQ(std::vector<std::int32_t>(ids.begin(), ids.end()),
              window_prompt(config->tokens, wanted, config->tokens.language_id(*config->tokenizer, "en"), false));
  }
}

TEST(WhisperRequest, ABlankPromptIsNone) {
  auto declared = declare_whisper(seeded());
  ASSERT_TRUE(declared);
  for (const char* prompt : {"", " \n\t "}) {
    auto intake = take_in(*declared, prompt);
    ASSERT_TRUE(intake);
    EXPECT_TRUE(prompt_history(intake->params).empty());
  }
}

TEST(WhisperRequest, APromptOfBytesThatBeginNoCharacterIsTaken) {
  const auto config = seeded_config();
  EXPECT_EQ(prompt_tokens(*config->tokenizer, std::string(100'000, '\x80')).size(), 223u);
  EXPECT_EQ(prompt_tokens(*config->tokenizer, std::string(100'000, '7')).size(), 223u);
}

TEST(WhisperRequest, ALongRecordingIsNotScannedForNobody) {
  const auto config = seeded_config();
  const std::int32_t seek[1] = {0};
  std::atomic<bool> abandoned{true};
  decl::HostInputs inputs{.walk = {}, .ports = {{wav(16000 * 40)}, {HostValue::i32(seek)}}, .abandoned = &abandoned};
  const auto stage = make_audio_stage(config, {});
  auto out = stage->run(inputs);
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().code, Code::cancelled);
  abandoned = false;
  out = stage->run(inputs);
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_TRUE(std::isfinite(out->ports[2][0].as<float>()[0]));
  EXPECT_EQ(out->ports[3][0].as<float>()[0], 40.0f);
  // One window alone needs no scan.
  inputs.ports[0] = {wav(12000)};
  abandoned = true;
  out = make_audio_stage(config, {})->run(inputs);
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_TRUE(std::isnan(out->ports[2][0].as<float>()[0]));
}

TEST(WhisperRequest, ARecordingOfLessThan100MsIsRefused) {
  const std::int32_t seek[1] = {0};
  for (const int num_samples : {1, 800, 1599}) {
    decl::HostInputs inputs{.walk = {}, .ports = {{wav(num_samples)}, {HostValue::i32(seek)}}};
    const auto out = make_audio_stage(seeded_config(), {})->run(inputs);
    ASSERT_FALSE(out);
    EXPECT_EQ(out.error().code, Code::invalid_request);
    EXPECT_EQ(out.error().field, "file");
  }
}

TEST(WhisperRequest, EverySpecialTokenNeedsALogit) {
  const auto config = seeded_config();
  const auto from = [&](std::int32_t vocab) { return WhisperTokens::from(*config->tokenizer, vocab); };
  // The first timestamp is the last one that is needed.
  ASSERT_TRUE(from(config->tokens.timestamp_begin + 1));
  for (std::int32_t vocab = config->tokens.eot; vocab <= config->tokens.timestamp_begin; ++vocab) {
    const auto tokens = from(vocab);
    ASSERT_FALSE(tokens) << vocab;
    EXPECT_EQ(tokens.error().code, Code::bad_model);
  }
}

}  // namespace
}  // namespace mstar::models
