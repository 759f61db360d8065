// Against the bytes of openai-whisper's own writers (tools/golden/cue_rules.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "mstar/text/subtitles.h"

namespace mstar {
namespace {

using nlohmann::json;

TEST(CueRules, AreThoseOfTheReference) {
  std::ifstream file(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/text/cue_rules.json");
  const json cases = json::parse(file);
  ASSERT_GT(cases.size(), 30u);
  for (const json& each : cases) {
    std::vector<TranscriptSegment> segments;
    for (const json& segment : each["segments"]) {
      TranscriptSegment& out = segments.emplace_back();
      out.start_s = segment["start"];
      out.end_s = segment["end"];
      out.text = segment["text"];
      for (const json& word : segment["words"]) out.words.push_back({word["word"], word["start"], word["end"], {}});
    }
    const json& given = each["options"];
    const CueRules rules{.max_line_width = given.value("max_line_width", 0),
                         .max_line_count = given.value("max_line_count", 0),
                         .max_words_per_line = given.value("max_words_per_line", 0)};
    const auto cues = cues_by_rules(segments, rules);
    EXPECT_EQ(write_srt(cues), each["srt"].get<std::string>()) << given;
    EXPECT_EQ(write_vtt(cues, {.escape_markup = false}), each["vtt"].get<std::string>()) << given;
  }
}

TEST(CueRules, WithoutWordsSegmentsStay) {
  const std::vector<TranscriptSegment> segments = {
      {.start_s = 1, .end_s = 2, .text = " a b c", .tokens = {}, .words = {}}};
  const auto cues = cues_by_rules(segments, {.max_line_width = 3, .max_line_count = 1});
  ASSERT_EQ(cues.size(), 1u);
  EXPECT_EQ(cues[0].text, " a b c");
  EXPECT_TRUE(cues_by_rules({}, {.max_line_width = 3}).empty());
}

}  // namespace
}  // namespace mstar
