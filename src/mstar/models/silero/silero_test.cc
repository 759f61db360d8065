// The voice network with its real weights beside the package's numbers (tools/golden/voice.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "mstar/media/audio_source.h"
#include "mstar/media/speech_segments.h"
#include "mstar/media/speech_sound.h"
#include "mstar/models/silero/voice_options.h"
#include "mstar/models/silero/voice_weights.h"

namespace mstar::models {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kClips = "/usr/share/pocketsphinx/test/data/librivox";

fs::path weights_directory() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  return (cache && *cache ? fs::path(cache) : fs::path(home ? home : "") / ".cache") / "mstar/weights/silero-vad";
}

std::vector<float> samples_of(const fs::path& path) {
  auto source = AudioSource::open_file(path.string());
  EXPECT_TRUE(source) << source.error().message;
  std::vector<float> out;
  for (std::size_t count = 1; count > 0;) {
    const std::size_t at = out.size();
    out.resize(at + 4096);
    count = *source->read(std::span<float>(out).subspan(at));
    out.resize(at + count);
  }
  return out;
}

class Silero : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(weights_directory()) || !fs::exists(kClips)) GTEST_SKIP() << "no weights silero-vad, or no clips";
    auto network = VoiceWeights(weights_directory()).get();
    ASSERT_TRUE(network) << network.error().message;
    network_ = *network;
    std::ifstream file(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/voice/clips.json");
    golden_ = json::parse(file);
  }
  std::vector<float> heard(std::span<const float> samples, std::size_t piece) const {
    VoiceDetector detector(network_);
    std::vector<float> out;
    for (std::size_t at = 0; at < samples.size(); at += piece)
      detector.push(samples.subspan(at, std::min(piece, samples.size() - at)), out);
    detector.finish(out);
    return out;
  }
  // As tools/golden/voice.py mixes them.
  std::vector<float> mix() const {
    constexpr std::size_t kGaps[] = {16000, 11200, 3000, 48000, 1600};
    std::vector<float> out;
    std::size_t i = 0;
    for (const auto& each : golden_["probabilities"].items()) {
      out.resize(out.size() + kGaps[i % 5], 0.0f);
      for (const float x : samples_of(kClips / each.key())) out.push_back(x * (i == 1 ? 0.1f : 1.0f));
      ++i;
    }
    out.resize(out.size() - 5000);
    return out;
  }

  std::shared_ptr<const VoiceNetwork> network_;
  json golden_;
};

TEST_F(Silero, ProbabilitiesAreThePackages) {
  for (const auto& [name, wanted] : golden_["probabilities"].items()) {
    const std::vector<float> samples = samples_of(kClips / name);
    const std::vector<float> found = heard(samples, 1600);
    ASSERT_EQ(found.size(), wanted.size());
    double worst = 0;
    for (std::size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(found[i]) - wanted[i].get<double>()));
    EXPECT_LT(worst, 5e-6) << name;
    EXPECT_EQ(heard(samples, 1), found) << "it may come in any pieces";
    EXPECT_EQ(heard(samples, samples.size()), found);
  }
}

TEST_F(Silero, StretchesAreThePackagesWithinAFrame) {
  const std::vector<float> samples = mix();
  const std::vector<float> probabilities = heard(samples, 512);
  for (const auto& [name, each] : golden_["mix"].items()) {
    Params fields;
    for (const auto& [option, value] : each["options"].items()) fields.set(option, value.get<double>());
    const auto options = read_speech_options(fields, "", {});
    ASSERT_TRUE(options) << options.error().message;
    SpeechSegments segments(*options);
    std::vector<SpeechSegment> found;
    for (const float probability : probabilities) segments.push(probability, found);
    segments.finish(std::ssize(samples), found);
    const json& wanted = each["segments"];
    ASSERT_EQ(found.size(), wanted.size()) << name;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(std::abs(found[i].begin - wanted[i][0].get<std::int64_t>()), kVoiceFrame) << name;
      EXPECT_LE(std::abs(found[i].end - wanted[i][1].get<std::int64_t>()), kVoiceFrame) << name;
    }
  }
}

TEST_F(Silero, TurnsBeginAndEnd) {
  std::vector<float> samples = mix();
  samples.resize(samples.size() + 32000, 0.0f);
  SpeechTurns turns(network_, {.threshold = 0.5, .prefix_padding_ms = 300, .silence_duration_ms = 800});
  std::vector<SpeechTurn> found;
  for (std::size_t at = 0; at < samples.size(); at += 480)
    turns.push(std::span<const float>(samples).subspan(at, std::min<std::size_t>(480, samples.size() - at)), found);
  ASSERT_EQ(found.size(), 6u);  // two pauses are longer than 800 ms
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].begins, i % 2 == 0);
  EXPECT_LT(found[0].sample, 19968);
  EXPECT_GT(found[0].sample, 10000);
  EXPECT_GT(found[1].sample, 126432 + 12800 - 2048);
  EXPECT_LT(found[1].sample, 126432 + 12800 + 4096);
  EXPECT_FALSE(turns.speaks());
}

TEST(VoiceOptions, AreChecked) {
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, double>>{{"vad_threshold", 1.0},
                                                             {"vad_speech_pad_ms", 10001},
                                                             {"vad_max_speech_duration_s", 0.5},
                                                             {"vad_min_silence_duration_ms", -1}}) {
    Params fields;
    fields.set(name, value);
    const auto read = read_speech_options(fields, "vad_", {});
    ASSERT_FALSE(read) << name;
    EXPECT_EQ(read.error().field, name);
  }
  Params fields;
  fields.set("vad_threshold", std::string("high"));
  EXPECT_FALSE(read_speech_options(fields, "vad_", {}));
}

TEST(VoiceWeights, SayWhatToDoWhereThereAreNone) {
  const auto got = VoiceWeights("/no/such/directory").get();
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::invalid_request);
  EXPECT_NE(got.error().message.find("./dev weights silero-vad"), std::string::npos);
}

}  // namespace
}  // namespace mstar::models
