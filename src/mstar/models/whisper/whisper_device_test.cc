// What Whisper does for a GPU, as far as a CPU can tell: the declaration, draws whose rules are worked out beside the
// tokens, dummy weights, and mels that a host stage makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/models/whisper/whisper.h"
#include "mstar/models/whisper/whisper_draws.h"
#include "mstar/models/whisper/whisper_dummy.h"
#include "mstar/models/whisper/whisper_stages.h"
#include "mstar/models/whisper/whisper_wav_fixture.h"
#include "mstar/weights/weight_map.h"

namespace mstar::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using whisper::DeviceDraws;

class DummyWhisper : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = std::filesystem::path(testing::TempDir()) / ("mstar_whisper_dummy_" + name);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static json small_config() {
    return {{"model_type", "whisper"},      {"vocab_size", 2000},          {"d_model", 32},
            {"num_mel_bins", 80},           {"encoder_layers", 1},         {"decoder_layers", 2},
            {"encoder_attention_heads", 2}, {"encoder_ffn_dim", 64},       {"decoder_ffn_dim", 64},
            {"max_source_positions", 50},   {"max_target_positions", 448}, {"begin_suppress_tokens", {3, 491}},
            {"suppress_tokens", {5, 6, 7}}};
  }
  Result<ModelSource> source(const json& config, Backend backend = Backend::cpu) {
    std::ofstream(directory_ / "config.json") << config.dump();
    ModelSource out{.name = "w", .directory = directory_, .backend = backend};
    out.options.set("load_format", std::string("dummy"));
    MSTAR_TRY_ASSIGN(out.checkpoint, dummy_checkpoint(out));
    return out;
  }

  std::filesystem::path directory_;
};

TEST_F(DummyWhisper, HasEveryWeightThatTheBodiesTake) {
  const auto made = source(small_config());
  ASSERT_TRUE(made) << made.error().message;
  ASSERT_TRUE(whisper_recognises(*made));
  const auto config = WhisperConfig::read(*made);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->encoder_layers, 1);
  EXPECT_EQ(config->decoder_layers, 2);
  EXPECT_EQ(config->heads, 2);
  EXPECT_EQ(config->audio_positions, 50);
  auto map = weights::WeightMap::create(made->checkpoint, whisper_weight_rules(made->checkpoint->format()));
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_TRUE(map->take("encoder.conv2.weight", {32, 32, 3}));
  EXPECT_TRUE(map->take("encoder.layer.0.self.qkv.weight", {96, 32}));
  EXPECT_TRUE(map->take("decoder.layer.1.self.qkv.bias", {96}));
  EXPECT_TRUE(map->take("cross.layer.1.kv.weight", {64, 32}));
  EXPECT_TRUE(map->take("decoder.layer.1.ffn.down.weight", {32, 64}));
  EXPECT_TRUE(map->take("decoder.positions", {448, 32}));
}

TEST_F(DummyWhisper, SpecialTokensLieWhereTheRealOnesDo) {
  struct Case {
    int vocab, eot, languages, begin;
  };
  for (const Case& c : {Case{51864, 50256, 0, 50363}, Case{51865, 50257, 99, 50364}, Case{51866, 50257, 100, 50365}}) {
    const auto tokenizer = whisper_dummy_tokenizer(c.vocab);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const auto tokens = WhisperTokens::from(*tokenizer, c.vocab);
    ASSERT_TRUE(tokens) << tokens.error().message;
    EXPECT_EQ(tokens->eot, c.eot);
    EXPECT_EQ(tokens->languages.size(), static_cast<std::size_t>(c.languages));
    EXPECT_EQ(tokens->timestamp_begin, c.begin);
    EXPECT_EQ(tokenizer->token_to_id("<|30.00|>"), c.vocab - 1);
    EXPECT_EQ(tokens->language_id(*tokenizer, "en"), c.languages ? c.eot + 2 : -1);
  }
  EXPECT_FALSE(whisper_dummy_tokenizer(1700));
}

TEST_F(DummyWhisper, SaysWhatItDoesNotTake) {
  json config = small_config();
  config.erase("d_model");
  const auto made = source(config);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("d_model"));
}

TEST_F(DummyWhisper, DeclaresCapturedStepsForAGpuAndTheHostsMels) {
  const auto made = source(small_config(), Backend::cuda);
  ASSERT_TRUE(made);
  const auto on_gpu = declare_whisper(*made);
  ASSERT_TRUE(on_gpu) << on_gpu.error().message;
  EXPECT_EQ(on_gpu->validate(), std::vector<std::string>{});
  EXPECT_FALSE(on_gpu->find_component("features").valid());  // they are made where the audio is decoded
  for (const char* name : {"encoder", "cross"}) {            // any number of windows without a padding row
    const auto& rows = on_gpu->at(on_gpu->find_component(name)).device().capture.rows;
    EXPECT_EQ(std::ssize(rows), kEncoderRows);
    EXPECT_EQ(rows.back(), kEncoderRows);
  }
  const auto& decoder = on_gpu->at(on_gpu->find_component("decoder")).device();
  EXPECT_FALSE(decoder.capture.rows.empty());
  ASSERT_EQ(decoder.capture.regions.size(), 1u);  // of texts that are aligned
  EXPECT_EQ(decoder.capture.regions[0].tokens.back(), decoder.max_batch_tokens);
  EXPECT_EQ(decoder.capture.regions[0].rows.back(), decoder.max_batch_rows);
  EXPECT_TRUE(decoder.run_ahead);
  EXPECT_EQ(decoder.compute, DType::bf16);
  const auto on_cpu = declare_whisper(*source(small_config()));
  ASSERT_TRUE(on_cpu);
  EXPECT_FALSE(on_cpu->at(on_cpu->find_component("features")).on_host());
  EXPECT_FALSE(on_cpu->at(on_cpu->find_component("decoder")).device().run_ahead);
}

// In one run what the audio stage and the features of its window are, rounded to what the encoder takes.
// What a worker's thread makes in a moment: plain samples of one window.
TEST_F(DummyWhisper, APlainShortRecordingIsBrief) {
  auto plan = MelPlan::make(80);
  ASSERT_TRUE(plan);
  const auto made = source(small_config(), Backend::cpu);
  ASSERT_TRUE(made);
  auto read = WhisperConfig::read(*made);
  ASSERT_TRUE(read);
  const auto config = std::make_shared<const WhisperConfig>(std::move(*read));
  const auto stage = make_window_stage(config, {}, std::make_shared<const MelPlan>(std::move(*plan)),
                                       std::make_shared<FeatureBuffers>(80, 100 * sizeof(float)));
  const auto is_brief = [&](HostValue file) {
    decl::HostInputs inputs;
    inputs.ports = {{std::move(file)}, {HostValue::i32(std::vector<std::int32_t>{0})}};
    return stage->is_brief(inputs);
  };
  EXPECT_TRUE(is_brief(wav(16000)));
  EXPECT_TRUE(is_brief(wav(30 * 16000)));
  EXPECT_FALSE(is_brief(wav(31 * 16000))) << "heard whole for its maximum";
  std::string coded(wav(16000).text());
  coded[20] = 7;
  EXPECT_FALSE(is_brief(HostValue::blob(coded))) << "mu-law: twice as long as its bytes say";
  EXPECT_FALSE(is_brief(HostValue::blob(coded.substr(0, 30))));
  EXPECT_FALSE(is_brief(HostValue::blob("fLaC")));
}

TEST_F(DummyWhisper, AHostStageMakesTheMelsOfAWindow) {
  auto plan = MelPlan::make(80);
  ASSERT_TRUE(plan);
  const auto shared = std::make_shared<const MelPlan>(std::move(*plan));
  for (const Backend backend : {Backend::cpu, Backend::cuda}) {
    const auto made = source(small_config(), backend);
    ASSERT_TRUE(made);
    auto read = WhisperConfig::read(*made);
    ASSERT_TRUE(read);
    const auto config = std::make_shared<const WhisperConfig>(std::move(*read));
    EXPECT_EQ(config->mels(), backend == Backend::cuda ? DType::bf16 : DType::f32);
    const auto buffers = std::make_shared<FeatureBuffers>(80, 100 * dtype_bytes(config->mels()));
    for (const int num_samples : {6500, 40000, 6500}) {  // a part of a window, and two and a half
      const auto stage = make_window_stage(config, {}, shared, buffers), audio = make_audio_stage(config, {});
      for (std::int32_t seek = 0; seek * kMelHopSamples + 1600 < num_samples; seek += 70) {
        decl::HostInputs inputs;
        inputs.ports = {{wav(num_samples)}, {HostValue::i32(std::vector<std::int32_t>{seek})}};
        const auto got = stage->run(inputs), heard = audio->run(inputs);
        ASSERT_TRUE(got && heard);
        const auto window = heard->ports[1][0].as<std::int32_t>();
        const std::int64_t segment = window[kWindowSegmentFrames], frames = window[kWindowMelFrames];
        EXPECT_TRUE(std::ranges::equal(got->ports[1][0].as<std::int32_t>(), window));
        EXPECT_EQ(got->ports[2][0].as<float>()[0], heard->ports[3][0].as<float>()[0]);
        const HostValue& mel = got->ports[0][0];
        EXPECT_EQ(mel.dims(), (std::vector<std::int64_t>{80, 100}));
        ASSERT_EQ(mel.dtype(), config->mels());

        auto device = make_cpu_device();
        Arena no_arena;
        OpContext ops{*device, {}, no_arena, nullptr};
        const auto pcm = heard->ports[0][0].as<float>();
        std::vector<float> raw(static_cast<std::size_t>(80 * frames));
        const TensorView out(raw.data(), DType::f32, {80, frames});
        ASSERT_TRUE(log_mel(
            ops, {shared.get(), TensorView(const_cast<float*>(pcm.data()), DType::f32, {std::ssize(pcm)}), out}));
        const float maximum = heard->ports[2][0].as<float>()[0];
        const float largest = std::isnan(maximum) ? mel_maximum(out) : maximum;
        for (std::int64_t m = 0; m < 80; ++m)
          for (std::int64_t f = 0; f < 100; ++f) {
            const float expected =
                f < segment ? (std::max(raw[static_cast<std::size_t>(m * frames + f)], largest - 8.0f) + 4.0f) / 4.0f
                            : 0.0f;
            const auto at = static_cast<std::size_t>(m * 100 + f);
            if (backend == Backend::cuda) {
              const auto* const values = reinterpret_cast<const BFloat16*>(mel.bytes().data());
              ASSERT_NEAR(to_float(values[at]), expected, 0.004f * std::max(1.0f, std::abs(expected))) << m << " " << f;
            } else {
              ASSERT_NEAR(mel.as<float>()[at], expected, 1e-6f) << m << " " << f;
            }
          }
      }
    }
  }
}

TEST(FeatureBuffers, AreZeroPastTheContent) {
  auto buffers = std::make_shared<FeatureBuffers>(3, 10);
  std::shared_ptr<std::byte> last;
  for (const std::size_t content : {10u, 4u, 7u, 0u}) {
    last = nullptr;
    last = buffers->take(content);
    for (std::size_t i = 0; i < 30; ++i) {
      if (i % 10 < content) {
        last.get()[i] = std::byte{0xff};
      } else {
        EXPECT_EQ(last.get()[i], std::byte{0}) << content << " " << i;
      }
    }
  }
  const auto other = buffers->take(10);
  EXPECT_NE(other, last);
  buffers = nullptr;  // its buffers stay
  EXPECT_EQ(last.get()[29], std::byte{0});
}

// What a row may not draw, as a set; and its tail.
struct Masks {
  std::set<std::int32_t> ids;
  std::int32_t tail_begin = -1;
  friend bool operator==(const Masks&, const Masks&) = default;
};
Masks masks_of(const SampleRow& row) {
  Masks out{.tail_begin = row.tail_begin};
  for (const auto list : {row.suppress, row.more_suppress}) out.ids.insert(list.begin(), list.end());
  for (const TokenRange& range : row.suppress_ranges)
    for (std::int32_t id = range.begin; id < range.end; ++id) out.ids.insert(id);
  return out;
}
Masks masks_of(const SampleRowWords& row, const std::int32_t* lists) {
  Masks out{.tail_begin = row.tail_begin};
  out.ids.insert(lists + row.suppress.begin, lists + row.suppress.begin + row.suppress.count);
  for (std::int32_t i = 0; i < row.ranges.count; i += 2)
    for (std::int32_t id = lists[row.ranges.begin + i]; id < lists[row.ranges.begin + i + 1]; ++id) out.ids.insert(id);
  return out;
}

// Two requests decode side by side, now and then with a row between them that does not draw, and with steps that are
// run twice, as after a row that was launched ahead in vain.
TEST_F(DummyWhisper, RulesBesideTheTokensAreThoseOfTheHost) {
  const auto made = source(small_config());
  ASSERT_TRUE(made);
  const auto config = WhisperConfig::read(*made);
  ASSERT_TRUE(config);
  const WhisperTokens& t = config->tokens;
  ASSERT_EQ(t.suppress.size(), 3u);
  auto device = make_cpu_device();
  Arena no_arena;
  OpContext ops{*device, {}, no_arena, nullptr};
  auto draws = DeviceDraws::create(*config, *device, 2, 3);
  ASSERT_TRUE(draws) << draws.error().message;
  std::mt19937 random(5);
  struct Sequence {
    RequestId request;
    std::vector<std::int32_t> tokens;
    std::size_t prompt = 0;
    DecodingState state;
  };
  Sequence sequences[2] = {{.request = RequestId(1)}, {.request = RequestId(2)}};
  for (int step = 0; step < 300; ++step) {
    const bool others = random() % 4 == 0, again = random() % 5 == 0;
    std::vector<std::int32_t> ids, positions, begins, slots, offsets = {0};
    std::vector<Masks> expected;
    std::vector<DeviceDraws::Run> runs;
    for (int i = 0; i < 2; ++i) {
      Sequence& s = sequences[i];
      if (s.tokens.empty() || s.tokens.size() > 60 || random() % 30 == 0) {  // a new window
        s.tokens = window_prompt(t, std::vector<std::int32_t>(random() % 12, 8), t.languages[0], false);
        s.prompt = s.tokens.size();
        s.state = {};
        for (std::size_t p = 0; p < s.prompt; ++p) positions.push_back(static_cast<std::int32_t>(p));
        ids.insert(ids.end(), s.tokens.begin(), s.tokens.end());
      } else {
        const std::int32_t token = random() % 2 ? t.timestamp_begin + static_cast<std::int32_t>(random() % 1500)
                                                : static_cast<std::int32_t>(random() % 480);
        s.tokens.push_back(token);
        s.state.push(token, t);
        positions.push_back(static_cast<std::int32_t>(s.tokens.size() - 1));
        ids.push_back(token);
      }
      const bool prompts = s.tokens.size() == s.prompt;
      const auto begin = draws->begin_of(s.request, prompts ? static_cast<int>(s.prompt) : 0);
      ASSERT_TRUE(begin) << begin.error().message;
      begins.push_back((*begin)->host.as<std::int32_t>()[0]);
      slots.push_back(i + 1);
      offsets.push_back(static_cast<std::int32_t>(ids.size()));
      runs.push_back({.first_row = static_cast<int>(slots.size()) - 1, .num_rows = 1, .first_draw = i});
      if (i == 0 && others) {
        ids.push_back(t.sot);
        positions.push_back(0);
        begins.push_back(1);
        slots.push_back(0);
        offsets.push_back(static_cast<std::int32_t>(ids.size()));
      }
      SampleRow row;
      std::vector<TokenRange> ranges;
      apply_decoding_rules(s.state, t, ranges, row);
      expected.push_back(masks_of(row));
    }
    if (!others) runs = {{.first_row = 0, .num_rows = 2, .first_draw = 0}};
    std::vector<SampleRowWords> wanted(2);
    wanted[1].temperature = 0.5f;
    wanted[1].seed = 77;
    const auto view = [](std::vector<std::int32_t>& values) {
      return TensorView(values.data(), DType::i32, {static_cast<std::int64_t>(values.size())});
    };
    const DeviceDraws::Step of_step{
        .ids = view(ids),
        .positions = view(positions),
        .begins = view(begins),
        .rows = {offsets.data(), static_cast<int>(slots.size()), static_cast<int>(ids.size())},
        .slots = slots.data(),
        .wanted = {.rows = wanted.data()}};
    for (int run = 0; run <= (again ? 1 : 0); ++run) {
      const auto got = draws->rules(ops, of_step, runs);
      ASSERT_TRUE(got) << got.error().message;
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(masks_of(got->rows[i], got->lists), expected[static_cast<std::size_t>(i)]) << step;
      EXPECT_EQ(got->rows[1].temperature, 0.5f);
      EXPECT_EQ(got->rows[1].seed, 77u);
    }
  }
  EXPECT_FALSE(draws->begin_of(RequestId(3), 0));
}

}  // namespace
}  // namespace mstar::models
