#include "mstar/media/speech_segments.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "mstar/media/speech_sound.h"

namespace mstar {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  std::ifstream file(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/voice/" + name);
  return json::parse(file);
}

// Random probabilities: the package's stretches to the sample (tools/golden/voice.py).
TEST(SpeechSegments, AreThoseOfTheReference) {
  for (const json& each : golden("rules.json")) {
    const json& given = each["options"];
    SpeechOptions options;
    options.threshold = given["threshold"];
    options.min_speech_duration_ms = given["min_speech_duration_ms"];
    if (given["max_speech_duration_s"] != 0) options.max_speech_duration_s = given["max_speech_duration_s"];
    options.min_silence_duration_ms = given["min_silence_duration_ms"];
    options.speech_pad_ms = given["speech_pad_ms"];
    options.cuts_at_longest_silence = given["use_max_poss_sil_at_max_speech"];
    SpeechSegments segments(options);
    std::vector<SpeechSegment> found;
    for (const json& probability : each["probabilities"]) segments.push(probability.get<float>(), found);
    segments.finish(each["num_samples"], found);
    std::vector<SpeechSegment> wanted;
    for (const json& segment : each["segments"]) wanted.push_back({segment[0], segment[1]});
    ASSERT_EQ(found.size(), wanted.size()) << given;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].begin, wanted[i].begin) << given << " stretch " << i;
      EXPECT_EQ(found[i].end, wanted[i].end) << given << " stretch " << i;
    }
  }
}

TEST(SpeechTimes, GoBackToTheRecording) {
  const std::vector<SpeechSegment> segments = {{16000, 32000}, {64000, 80000}, {80000, 96000}};
  const SpeechTimes times(segments);
  EXPECT_DOUBLE_EQ(times.original(0.5), 1.5);
  EXPECT_DOUBLE_EQ(times.original(1.0), 4.0);
  EXPECT_DOUBLE_EQ(times.original(1.0, true), 2.0);
  EXPECT_DOUBLE_EQ(times.original(2.5), 5.5);
  EXPECT_DOUBLE_EQ(times.original(9.0), 12.0);  // behind all
  EXPECT_DOUBLE_EQ(times.original_of(1.01, 0.9), 2.01);
  EXPECT_DOUBLE_EQ(SpeechTimes({}).original(3), 3);
}

}  // namespace
}  // namespace mstar
