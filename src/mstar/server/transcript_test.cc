#include "mstar/server/transcript.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace mstar::server {
namespace {

using nlohmann::json;

TranscriptSegment segment(double start_s, double end_s, std::string text) {
  TranscriptSegment out;
  out.start_s = start_s;
  out.end_s = end_s;
  out.text = std::move(text);
  return out;
}

TEST(Transcript, SubtitlesRoundAndClean) {
  Transcript t;
  t.segments = {segment(0, 1.0004, " a --> b ---> c"), segment(3599.9996, 36000.5, " \n two\nlines "),
                segment(-1, std::numeric_limits<double>::quiet_NaN(), "")};
  EXPECT_EQ(write_transcript(t, TranscriptFormat::srt, {}),
            "1\n00:00:00,000 --> 00:00:01,000\na -> b -> c\n\n"
            "2\n01:00:00,000 --> 10:00:00,500\ntwo\nlines\n\n"
            "3\n00:00:00,000 --> 00:00:00,000\n\n\n");
  t.segments.resize(1);
  EXPECT_EQ(write_transcript(t, TranscriptFormat::vtt, {}), "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na -> b -> c\n\n");
}

TEST(Transcript, TextWithoutSegmentsIsOneCue) {
  Transcript t;
  t.text = "all of it";
  t.duration_s = 2;
  EXPECT_EQ(write_transcript(t, TranscriptFormat::srt, {}), "1\n00:00:00,000 --> 00:00:02,000\nall of it\n\n");
  EXPECT_EQ(write_transcript({}, TranscriptFormat::srt, {}), "");
  EXPECT_EQ(write_transcript({}, TranscriptFormat::vtt, {}), "WEBVTT\n\n");
  EXPECT_EQ(write_transcript({}, TranscriptFormat::text, {}), "\n");
}

TEST(Transcript, VerboseHasWhatWasAskedFor) {
  Transcript t;
  t.text = "a b";
  t.language = "de";
  t.duration_s = 1.25;
  t.segments = {segment(0, 1, " a b")};
  t.segments[0].words = {{" a", 0, 0.5, {}}, {" b", 0.5, 1, {}}};
  VerboseOptions options;
  json parsed = json::parse(write_transcript(t, TranscriptFormat::verbose_json, options));
  EXPECT_EQ(parsed["language"], "german");
  EXPECT_TRUE(parsed.contains("segments"));
  EXPECT_FALSE(parsed.contains("words"));
  EXPECT_EQ(parsed["usage"], json::parse(R"({"type":"duration","seconds":2})"));
  options.words = true;
  options.segments = false;
  options.translate = true;
  parsed = json::parse(write_transcript(t, TranscriptFormat::verbose_json, options));
  EXPECT_EQ(parsed["language"], "english");
  EXPECT_EQ(parsed["task"], "translate");
  EXPECT_FALSE(parsed.contains("segments"));
  EXPECT_EQ(parsed["words"], json::parse(R"([{"word":"a","start":0,"end":0.5},{"word":"b","start":0.5,"end":1}])"));
}

TEST(Languages, NamesOfCodes) {
  EXPECT_EQ(language_name("en"), "english");
  EXPECT_EQ(language_name("af"), "afrikaans");
  EXPECT_EQ(language_name("zh"), "chinese");
  EXPECT_EQ(language_name("haw"), "hawaiian");
  EXPECT_EQ(language_name("yue"), "cantonese");
  EXPECT_EQ(language_name("xx"), "xx");
  EXPECT_EQ(language_name(""), "");
  EXPECT_EQ(language_name("english"), "english");
}

}  // namespace
}  // namespace mstar::server
