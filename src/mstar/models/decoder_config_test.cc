// What a checkpoint's config.json may not say: every fault is an error that names it, for dense and hybrid decoders.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "mstar/models/model.h"

namespace mstar::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
const fs::path kGolden = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/decoders";

// The golden's directory with another config.json.
class Changed {
 public:
  Changed(const std::string& name, const std::function<void(json&)>& change)
      : directory_(fs::temp_directory_path() / ("mstar_decoder_config_" + std::to_string(getpid()))) {
    fs::create_directories(directory_);
    for (const char* const file : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(kGolden / name / file, directory_ / file, fs::copy_options::overwrite_existing);
    std::ifstream from(kGolden / name / "config.json");
    json config = json::parse(from);
    change(config);
    std::ofstream(directory_ / "config.json") << config.dump();
    auto opened = weights::Checkpoint::open(directory_);
    EXPECT_TRUE(opened) << opened.error().message;
    source_ = {.name = "changed", .directory = directory_, .checkpoint = std::move(*opened)};
  }
  ~Changed() { fs::remove_all(directory_); }
  ModelSource& source() { return source_; }
  Result<decl::Decl> declare() {
    MSTAR_TRY_ASSIGN(const ModelFamily* const family, find_family(source_));
    return family->declare(source_);
  }

 private:
  fs::path directory_;
  ModelSource source_;
};

// Sets one key of the text model, wherever that is.
std::function<void(json&)> setting(const std::string& key, const json& value) {
  return [key, value](json& config) { (config.contains("text_config") ? config["text_config"] : config)[key] = value; };
}

void expect_refused(const std::string& name, const std::string& key, const json& value, const std::string& named = "") {
  Changed changed(name, setting(key, value));
  const auto declared = changed.declare();
  ASSERT_FALSE(declared) << name << " " << key << " " << value;
  EXPECT_EQ(declared.error().code, Code::bad_model) << declared.error().message;
  EXPECT_NE(declared.error().message.find(named.empty() ? key : named), std::string::npos) << declared.error().message;
}

TEST(DecoderConfig, RefusesSizesOfTheWrongKind) {
  for (const std::string name : {"llama", "qwen35"}) {
    for (const std::string key : {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                                  "intermediate_size", "max_position_embeddings"})
      for (const json& value : {json(0), json(-3), json(1.5), json("4"), json::array({4}), json(1e30)})
        expect_refused(name, key, value);
    for (const json& value : {json(0), json("1e-6"), json(-1e-6)}) expect_refused(name, "rms_norm_eps", value);
    for (const json& value : {json("gelu"), json(3), json::array()}) expect_refused(name, "hidden_act", value);
    expect_refused(name, "num_key_value_heads", 3, "no multiple");
    expect_refused(name, "rope_parameters", {{"rope_type", "yarn"}}, "yarn");
    expect_refused(name, "rope_parameters", {{"rope_type", 3}}, "rope_type");
    expect_refused(name, "rope_parameters", {{"rope_theta", "big"}}, "rope_theta");
  }
  for (const std::string key : {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                                "linear_value_head_dim", "linear_conv_kernel_dim"})
    for (const json& value : {json(0), json("4"), json(nullptr), json(1e30)}) expect_refused("qwen35", key, value);
  expect_refused("qwen35", "linear_num_key_heads", 3, "no multiple");
  expect_refused("qwen35", "linear_value_head_dim", 24, "no multiple");
  expect_refused("qwen35", "linear_key_head_dim", 1 << 20, "too many");
  expect_refused("qwen35", "rope_parameters", {{"partial_rotary_factor", 0.01}}, "rotated");
}

TEST(DecoderConfig, RefusesOptionsOutOfRange) {
  for (const auto& [name, value] : {std::pair<const char*, const char*>{"weights", "f64"}, {"state", "i8"}}) {
    Changed changed("qwen35", [](json&) {});
    changed.source().options.set(name, std::string(value));
    const auto declared = changed.declare();
    ASSERT_FALSE(declared);
    EXPECT_EQ(declared.error().field, name);
  }
  for (const std::string name : {"llama", "qwen35"}) {
    Changed changed(name, [](json&) {});
    changed.source().options.set("kv_tokens", std::int64_t{-1});
    const auto declared = changed.declare();
    ASSERT_FALSE(declared);
    EXPECT_EQ(declared.error().field, "kv_tokens");
  }
  for (const std::int64_t tokens : {8, 5000}) {
    Changed changed("qwen35", [](json&) {});
    changed.source().options.set("context_tokens", tokens);
    const auto declared = changed.declare();
    ASSERT_FALSE(declared);
    EXPECT_EQ(declared.error().field, "context_tokens");
  }
}

TEST(DecoderConfig, SnapshotsOfHybridsAreAnOption) {
  for (const auto& [name, value] : {std::pair<const char*, std::int64_t>{"state_snapshots", -1},
                                    {"state_snapshots", 5000},
                                    {"snapshot_tokens", 0},
                                    {"snapshot_tokens", 40}}) {
    Changed changed("qwen35", [](json&) {});
    changed.source().options.set(name, value);
    const auto declared = changed.declare();
    ASSERT_FALSE(declared) << name << " " << value;
    EXPECT_EQ(declared.error().field, name);
  }
  const auto state_of = [](const Params& options) {
    Changed changed("qwen35", [](json&) {});
    changed.source().options = options;
    const auto declared = changed.declare();
    EXPECT_TRUE(declared) << declared.error().message;
    for (const decl::ResourceSpec& each : declared->resources())
      if (const auto* const state = std::get_if<decl::RecurrentState>(&each))
        return std::pair(state->snapshots, state->snapshot_tokens);
    return std::pair(-1, -1);
  };
  Params options;
  EXPECT_EQ(state_of(options), std::pair(64, 256));
  options.set("snapshot_tokens", std::int64_t{48});
  options.set("state_snapshots", std::int64_t{3});
  EXPECT_EQ(state_of(options), std::pair(3, 48));
  options.set("prefix_cache", false);
  EXPECT_EQ(state_of(options).first, 0);
}

// The arrays that config.json alone asks for are those that a real checkpoint holds.
TEST(DecoderConfig, DummyWeightsAreThoseOfTheCheckpoint) {
  for (const std::string name : {"llama", "qwen2", "qwen3", "qwen35", "qwen35_tied"}) {
    Changed real(name, [](json&) {});
    std::map<std::string, Shape> wanted, got;
    for (const weights::StoredWeight& each : real.source().checkpoint->weights()) {
      std::string key(each.name);
      if (key.starts_with("mtp.") || key.starts_with("model.visual.")) continue;
      if (key.starts_with("model.language_model.")) key.erase(6, 15);
      wanted[key] = each.shape;
    }
    real.source().options.set("load_format", std::string("dummy"));
    const auto dummy = dummy_checkpoint(real.source());
    ASSERT_TRUE(dummy) << dummy.error().message;
    for (const weights::StoredWeight& each : (*dummy)->weights()) got[std::string(each.name)] = each.shape;
    EXPECT_EQ(got, wanted) << name;
    real.source().checkpoint = *dummy;
    const auto declared = real.declare();
    EXPECT_TRUE(declared) << declared.error().message;
  }
}

TEST(DecoderConfig, OtherFamiliesAreNotTaken) {
  for (const json& type : {json("gpt2"), json(3), json(nullptr)}) {
    for (const std::string name : {"llama", "qwen35"}) {
      Changed changed(name, [&](json& config) { config["model_type"] = type; });
      EXPECT_FALSE(find_family(changed.source())) << name << " " << type;
    }
  }
}

}  // namespace
}  // namespace mstar::models
