#include "mstar/models/decoder_lm/decoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "mstar/models/decoder_lm/decoder_lm.h"
#include "mstar/weights/weight_map.h"

namespace mstar::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json small_config(const char* type) {
  return {{"model_type", type},     {"vocab_size", 300},        {"hidden_size", 64},
          {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"head_dim", 16},         {"intermediate_size", 96},  {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},   {"rope_theta", 10000.0},    {"tie_word_embeddings", std::string(type) != "llama"},
          {"hidden_act", "silu"}};
}

class DummyModel : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = std::filesystem::path(testing::TempDir()) / ("mstar_dummy_" + name);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Result<ModelSource> source(const json& config) {
    std::ofstream(directory_ / "config.json") << config.dump();
    ModelSource out{.name = "m", .directory = directory_};
    out.options.set("load_format", std::string("dummy"));
    MSTAR_TRY_ASSIGN(out.checkpoint, dummy_checkpoint(out));
    return out;
  }

  std::filesystem::path directory_;
};

TEST_F(DummyModel, EveryFamilyGetsTheWeightsThatItsHomesWant) {
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    const auto made = source(small_config(type));
    ASSERT_TRUE(made) << made.error().message;
    const auto config = DecoderConfig::read(*made);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->decoder.vocab, 300);
    EXPECT_EQ(config->layer.qkv_bias, std::string(type) == "qwen2");
    EXPECT_EQ(config->layer.qk_norm, std::string(type) == "qwen3");
    EXPECT_EQ(config->decoder.tied, std::string(type) != "llama");
    const auto rules = decoder_lm_weight_rules(*config, made->checkpoint->format());
    auto map = weights::WeightMap::create(made->checkpoint, rules);
    ASSERT_TRUE(map) << map.error().message;
    EXPECT_TRUE(map->take("decoder.layer.1.qkv.weight", {4 * 16 + 2 * 2 * 16, 64}));
    EXPECT_TRUE(map->take("decoder.layer.1.gate_up.weight", {2 * 96, 64}));
    EXPECT_EQ(map->take("decoder.norm.weight", {64})->to_f32(), std::vector<float>(64, 1.0f));
    EXPECT_EQ(map->has("decoder.head.weight"), !config->decoder.tied);
    EXPECT_TRUE(declare_decoder_lm(*made));
  }
}

TEST_F(DummyModel, HasATokenizerThatReadsWhatItWrites) {
  const auto made = source(small_config("qwen3"));
  ASSERT_TRUE(made);
  const auto config = DecoderConfig::read(*made);
  ASSERT_TRUE(config);
  const auto ids = config->decoder.text.tokenizer->encode("a line\nof text");
  EXPECT_EQ(config->decoder.text.tokenizer->decode(ids), "a line\nof text");
}

TEST_F(DummyModel, SaysWhatItDoesNotTake) {
  json config = small_config("mamba");
  auto made = source(config);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("mamba"));
  config = small_config("llama");
  config.erase("hidden_size");
  made = source(config);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("hidden_size"));
}

}  // namespace
}  // namespace mstar::models
