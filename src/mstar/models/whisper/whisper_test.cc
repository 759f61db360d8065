// Whisper against golden values of the reference: a seeded tiny model in every weight format, port by port, and the
// text rules.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/engine.h"
#include "mstar/models/whisper/whisper.h"
#include "mstar/models/whisper/whisper_text.h"

namespace mstar::models {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/whisper_tiny_seeded";

// One checkpoint with the tokenizer that the formats share, and its components as engines on the CPU.
class Seeded {
 public:
  explicit Seeded(const std::string& format, const std::string& storage = "stored") {
    directory_ =
        fs::temp_directory_path() / ("mstar_whisper_" + format + "_" + storage + "_" + std::to_string(getpid()));
    fs::create_directories(directory_);
    for (const auto& entry : fs::directory_iterator(kGolden / format))
      fs::copy_file(entry.path(), directory_ / entry.path().filename(), fs::copy_options::overwrite_existing);
    fs::copy_file(kGolden / "hf/tokenizer.json", directory_ / "tokenizer.json", fs::copy_options::overwrite_existing);
    auto opened = weights::Checkpoint::open(directory_);
    EXPECT_TRUE(opened) << opened.error().message;
    checkpoint_ = std::move(*opened);
    ModelSource source{.name = "seeded", .directory = directory_, .checkpoint = checkpoint_};
    source.options.set("weights", storage);
    EXPECT_TRUE(whisper_recognises(source));
    auto declared = declare_whisper(source);
    EXPECT_TRUE(declared) << declared.error().message;
    decl_ = std::make_unique<decl::Decl>(std::move(*declared));
    EXPECT_EQ(decl_->validate(), std::vector<std::string>{});
    device_ = make_cpu_device();
    buffers_ = std::make_shared<engine::BufferPool>(*device_);
    auto map = weights::WeightMap::create(checkpoint_, decl_->weight_rules());
    EXPECT_TRUE(map) << map.error().message;
    const resource::PoolLimits limits{.max_requests = 4, .max_rows = 4, .max_tokens = 64};
    std::vector<decl::ComponentRef> components;
    for (const char* name : {"encoder", "cross", "decoder"}) components.push_back(decl_->find_component(name));
    auto resources = engine::ResourceSet::build(*decl_, components, limits, *device_);
    EXPECT_TRUE(resources);
    resources_ = std::move(*resources);
    for (const decl::ComponentRef component : components) {
      auto made = engine::Engine::create(*decl_, component, {limits, buffers_, &pool_}, resources_, *map, *device_);
      EXPECT_TRUE(made) << made.error().message;
      engines_.push_back(std::move(*made));
    }
    const std::string homes[] = {"encoder.", "cross.", "decoder."};
    const Status finished = map->finish(homes);
    EXPECT_TRUE(finished) << finished.error().message;
    EXPECT_TRUE(resources_.add_request(RequestId(1), {}));
  }
  ~Seeded() { fs::remove_all(directory_); }

  // Runs a component (0 encoder, 1 cross, 2 decoder) for the first run of it in `walk`.
  std::vector<Values> run(int which, const std::string& walk, std::vector<Values> ports) {
    const char* names[] = {"encoder", "cross", "decoder"};
    const decl::ComponentRef component = decl_->find_component(names[which]);
    engine::RowInputs row{
        .request = RequestId(1), .params = std::make_shared<decl::RequestParams>(), .walk = decl_->find_walk(walk)};
    decl::for_each_run(decl_->at(row.walk).root, [&](const decl::Run& each) {
      if (each.component == component && !row.run) row.run = &each;
    });
    row.ports = std::move(ports);
    std::vector<engine::RowInputs> rows;
    rows.push_back(std::move(row));
    auto prepared = engines_[static_cast<std::size_t>(which)]->prepare(std::move(rows));
    EXPECT_TRUE(prepared.step);
    for (bool done = false; !done;) {
      auto advanced = engines_[static_cast<std::size_t>(which)]->advance(*prepared.step);
      EXPECT_TRUE(advanced);
      done = !advanced || *advanced;
    }
    auto results = engines_[static_cast<std::size_t>(which)]->finish(std::move(prepared.step));
    EXPECT_FALSE(results[0].error) << results[0].error->message;
    return std::move(results[0].outputs);
  }

 private:
  fs::path directory_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  std::unique_ptr<decl::Decl> decl_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_{2};
  std::shared_ptr<engine::BufferPool> buffers_;
  engine::ResourceSet resources_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
};

HostValue golden_port(const weights::Checkpoint& ports, const char* name) {
  const weights::StoredWeight* stored = ports.find(name);
  EXPECT_NE(stored, nullptr) << name;
  return HostValue(DType::f32, stored->shape.dims(), {stored->bytes.begin(), stored->bytes.end()});
}

double largest_difference(const HostValue& a, const HostValue& b) {
  EXPECT_EQ(a.size_bytes(), b.size_bytes());
  double worst = 0;
  for (std::size_t i = 0; i < a.as<float>().size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a.as<float>()[i]) - b.as<float>()[i]));
  return worst;
}

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
