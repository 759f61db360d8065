#include "mstar/text/subtitles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace mstar {
namespace {

TranscriptSegment segment(double start_s, double end_s, std::string text) {
  TranscriptSegment out;
  out.start_s = start_s;
  out.end_s = end_s;
  out.text = std::move(text);
  return out;
}

// Expected values from openai-whisper's format_timestamp.
TEST(Subtitles, Timestamps) {
  EXPECT_EQ(format_timestamp(0, true, ','), "00:00:00,000");
  EXPECT_EQ(format_timestamp(0, false, '.'), "00:00.000");
  EXPECT_EQ(format_timestamp(3599.9996, false, '.'), "01:00:00.000");
  EXPECT_EQ(format_timestamp(0.0005, false, '.'), "00:00.000");
  EXPECT_EQ(format_timestamp(0.0015, false, '.'), "00:00.002");
  EXPECT_EQ(format_timestamp(7.84, true, ','), "00:00:07,840");
  EXPECT_EQ(format_timestamp(360000 + 61.5, true, ','), "100:01:01,500");
  EXPECT_EQ(format_timestamp(-1, true, ','), "00:00:00,000");
  EXPECT_EQ(format_timestamp(std::nan(""), true, ','), "00:00:00,000");
  EXPECT_EQ(format_timestamp(std::numeric_limits<double>::infinity(), true, ','), "277777:46:40,000");
}

TEST(Subtitles, Srt) {
  const std::vector<TranscriptSegment> segments = {segment(0, 2.5, " Hello --> there.\n\r\n\nNext "),
                                                   segment(2.5, 3661.004, " \xE4\xBD\xA0 & <b>")};
  EXPECT_EQ(write_srt(segments),
            "1\n00:00:00,000 --> 00:00:02,500\nHello -> there.\nNext\n\n"
            "2\n00:00:02,500 --> 01:01:01,004\n\xE4\xBD\xA0 & <b>\n\n");
  EXPECT_EQ(write_srt({}), "");
}

TEST(Subtitles, Vtt) {
  const std::vector<TranscriptSegment> segments = {segment(0, 2.5, " Q&A --> <b> "), segment(3600, 3601, "x")};
  EXPECT_EQ(write_vtt(segments),
            "WEBVTT\n\n00:00.000 --> 00:02.500\nQ&amp;A -> &lt;b>\n\n01:00:00.000 --> 01:00:01.000\nx\n\n");
  EXPECT_EQ(vtt_cue(segments[0], {.always_hours = true, .escape_markup = false}),
            "00:00:00.000 --> 00:00:02.500\nQ&A -> <b>\n\n");
  EXPECT_EQ(write_vtt({}), "WEBVTT\n\n");
}

TEST(Subtitles, TxtAndTsv) {
  const std::vector<TranscriptSegment> segments = {segment(0, 2.5, " a\tb "), segment(2.5, 3, " c\nd")};
  EXPECT_EQ(write_txt(segments), "a\tb\nc\nd\n");
  EXPECT_EQ(write_tsv(segments), "start\tend\ttext\n0\t2500\ta b\n2500\t3000\tc d\n");
}

TEST(Subtitles, VerboseJson) {
  Transcript transcript;
  transcript.language = "english";
  transcript.duration_s = 3.0004;
  transcript.text = "say \"hi\"\n\xFF";
  transcript.segments = {segment(0, 0.1 + 0.2, " say \"hi\"")};
  transcript.segments[0].tokens = {50364, 5};
  transcript.segments[0].avg_logprob = -0.25;
  transcript.segments[0].no_speech_prob = std::nan("");
  transcript.segments[0].words = {{" say", 0, 0.1, 0.5}, {" \"hi\"", 0.1, 0.3, std::nullopt}};
  EXPECT_EQ(
      write_verbose_json(transcript),
      "{\"task\":\"transcribe\",\"language\":\"english\",\"duration\":3.0,\"text\":\"say \\\"hi\\\"\\n\xEF\xBF\xBD\","
      "\"segments\":[{\"id\":0,\"seek\":0,\"start\":0.0,\"end\":0.3,\"text\":\" say \\\"hi\\\"\",\"tokens\":[50364,5],"
      "\"avg_logprob\":-0.25,\"no_speech_prob\":null}]}");
  const auto words = nlohmann::json::parse(write_verbose_json(transcript, {.segments = false, .words = true}));
  EXPECT_FALSE(words.contains("segments"));
  ASSERT_EQ(words["words"].size(), 2u);
  EXPECT_EQ(words["words"][0]["probability"], 0.5);
  EXPECT_EQ(words["words"][1]["word"], "\"hi\"");
  EXPECT_EQ(nlohmann::json::parse(write_json(transcript)).size(), 1u);
}

}  // namespace
}  // namespace mstar
