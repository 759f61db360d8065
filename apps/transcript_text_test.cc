#include "transcript_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace mstar::apps {
namespace {

constexpr const char* kSegment =
    R"({"id":3,"seek":3000,"start":30.0,"end":32.5,"text":" Hello there.","tokens":[1,2],"temperature":0.0,
        "avg_logprob":-0.25,"compression_ratio":1.5,"no_speech_prob":0.01})";

Transcript example() {
  Transcript out;
  out.language = "en";
  out.duration_s = 40;
  out.segments.push_back(*parse_transcript_segment(kSegment));
  out.segments.push_back({.start_s = 32.5, .end_s = 35, .text = " More."});
  out.text = whole_text(out.segments);
  return out;
}

TEST(TranscriptFormat, NamesTheChoices) {
  EXPECT_EQ(*transcript_format("vtt"), TranscriptFormat::vtt);
  ASSERT_FALSE(transcript_format("pdf"));
  EXPECT_EQ(transcript_format("pdf").error().message, "--format must be txt, srt, vtt or json, not 'pdf'");
}

TEST(RenderTranscript, WritesEveryFormat) {
  const Transcript transcript = example();
  EXPECT_EQ(render_transcript(transcript, TranscriptFormat::txt, false), "Hello there.\nMore.\n");
  EXPECT_EQ(render_transcript(transcript, TranscriptFormat::srt, false),
            "1\n00:00:30,000 --> 00:00:32,500\nHello there.\n\n2\n00:00:32,500 --> 00:00:35,000\nMore.\n\n");
  EXPECT_EQ(render_transcript(transcript, TranscriptFormat::vtt, false),
            "WEBVTT\n\n00:30.000 --> 00:32.500\nHello there.\n\n00:32.500 --> 00:35.000\nMore.\n\n");
}

TEST(RenderTranscript, JsonHasTextLanguageDurationAndSegments) {
  const auto json = nlohmann::json::parse(render_transcript(example(), TranscriptFormat::json, false));
  EXPECT_EQ(json["text"], "Hello there. More.");
  EXPECT_EQ(json["language"], "en");
  EXPECT_EQ(json["duration"], 40.0);
  ASSERT_EQ(json["segments"].size(), 2u);
  EXPECT_EQ(json["segments"][0]["tokens"], (std::vector<int>{1, 2}));
  EXPECT_FALSE(json.contains("partial"));
}

TEST(RenderTranscript, APartialOneSaysSo) {
  EXPECT_EQ(nlohmann::json::parse(render_transcript(example(), TranscriptFormat::json, true))["partial"], true);
}

TEST(RenderJsonLine, IsOneLineThatNamesItsFile) {
  const std::string line = render_json_line(example(), "a \"b\"\n.wav", false);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(nlohmann::json::parse(line)["file"], "a \"b\"\n.wav");
}

TEST(RenderTranscript, SilenceIsAnEmptyText) {
  EXPECT_EQ(render_transcript({}, TranscriptFormat::txt, false), "");
  EXPECT_EQ(render_transcript({}, TranscriptFormat::vtt, false), "WEBVTT\n\n");
}

}  // namespace
}  // namespace mstar::apps
