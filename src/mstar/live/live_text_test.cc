#include "mstar/live/live_text.h"

#include <gtest/gtest.h>

#include <random>

namespace mstar {
namespace {

TEST(LiveText, TellsWhatTwoHypothesesAgreeOn) {
  LiveText text;
  EXPECT_EQ(text.hear(" And Mr."), "");
  EXPECT_EQ(text.hear(" And Mr. John"), " And Mr.");
  EXPECT_EQ(text.hear(" And Mr John Dash"), " John");
  EXPECT_EQ(text.hear(" And Mr. John Dashwood had"), "");
  EXPECT_EQ(text.settle(" And Mr. John Dashwood had then."), " Dashwood had then.");
}

TEST(LiveText, NeverTakesAnythingBack) {
  LiveText text;
  text.hear(" one two three");
  EXPECT_EQ(text.hear(" one two three four"), " one two three");
  EXPECT_EQ(text.hear(" won too"), "");
  EXPECT_EQ(text.hear(" one two three four five"), "");
  EXPECT_EQ(text.hear(" one two three four five six"), " four five");
  // Words came, or went, in front of what was told.
  LiveText more;
  more.hear(" two three");
  more.hear(" two three");
  EXPECT_EQ(more.settle(" one two three four"), " four");
  LiveText fewer;
  fewer.hear(" uh one two");
  fewer.hear(" uh one two");
  EXPECT_EQ(fewer.settle(" one two three"), " three");
}

TEST(LiveText, SignsAreWords) {
  LiveText text;
  EXPECT_EQ(text.hear("\u4f60\u597d"), "");
  EXPECT_EQ(text.hear("\u4f60\u597d\u4e16\u754c"), "\u4f60\u597d");
  EXPECT_EQ(text.settle("\u4f60\u597d\u4e16\u754c\u3002"), "\u4e16\u754c\u3002");
}

// Growing prefixes of a sentence with noise at their ends: what was told, put together, is the sentence.
TEST(LiveText, GrowingHypothesesAddUp) {
  std::mt19937 random(3);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::string> words;
    for (std::size_t i = 0; i < 3 + random() % 20; ++i) words.push_back(" w" + std::to_string(random() % 50));
    LiveText text;
    std::string told, whole;
    for (const std::string& each : words) whole += each;
    for (std::size_t count = 1; count <= words.size(); count += 1 + random() % 3) {
      std::string hypothesis;
      for (std::size_t i = 0; i < count; ++i) hypothesis += words[i];
      if (random() % 2) hypothesis += " noise" + std::to_string(random());
      told += text.hear(hypothesis);
    }
    told += text.settle(whole);
    EXPECT_EQ(told, whole);
  }
}

TEST(LiveText, AnyBytesGoThrough) {
  std::mt19937 random(4);
  for (int turn = 0; turn < 300; ++turn) {
    LiveText text;
    for (int i = 0; i < 4; ++i) {
      std::string bytes(random() % 12, ' ');
      for (char& c : bytes) c = static_cast<char>(random());
      text.hear(bytes);
      if (i == 3) text.settle(bytes);
    }
  }
}

}  // namespace
}  // namespace mstar
