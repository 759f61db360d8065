#include "mstar/text/transcript.h"

#include <gtest/gtest.h>

namespace mstar {
namespace {

TEST(TranscriptSegment, ReadsWhatModelsEmit) {
  const auto segment = parse_transcript_segment(
      R"({"id":3,"seek":3000,"start":30,"end":32.5,"text":" Hello there.","tokens":[1,2],"temperature":0.0,
          "avg_logprob":-0.25,"compression_ratio":1.5,
          "words":[{"word":" Hello","start":30,"end":31,"probability":0.5},{"word":" there."},{"start":1},3]})");
  ASSERT_TRUE(segment);
  EXPECT_EQ(segment->text, " Hello there.");
  EXPECT_EQ(segment->seek_frames, 3000);
  EXPECT_EQ(segment->start_s, 30);
  EXPECT_EQ(segment->end_s, 32.5);
  EXPECT_EQ(segment->tokens, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(segment->avg_logprob, -0.25);
  EXPECT_EQ(segment->no_speech_prob, std::nullopt);
  ASSERT_EQ(segment->words.size(), 2u);
  EXPECT_EQ(segment->words[0].probability, 0.5);
  EXPECT_EQ(segment->words[1].text, " there.");
  EXPECT_EQ(segment->words[1].end_s, 0);
}

TEST(TranscriptSegment, RefusesWhatIsNone) {
  EXPECT_TRUE(parse_transcript_segment(R"({"text":"","start":0,"end":0,"tokens":7,"words":{},"seek":"x"})"));
  for (const char* text : {"", "[]", "7", "{", "null", R"({"text":"a"})", R"({"text":1,"start":0,"end":1})",
                           R"({"start":0,"end":1})", R"({"text":"a","start":"0","end":1})"})
    EXPECT_FALSE(parse_transcript_segment(text)) << text;
}

}  // namespace
}  // namespace mstar
