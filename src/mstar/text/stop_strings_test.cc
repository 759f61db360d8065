#include "mstar/text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace mstar {
namespace {

struct Outcome {
  std::string text;
  bool matched = false;
};

Outcome feed(const std::vector<std::string>& strings, const std::vector<std::string>& pieces) {
  StopStrings stops(strings);
  Outcome out;
  for (const std::string& piece : pieces) out.text += stops.push(piece);
  out.text += stops.finish();
  out.matched = stops.matched();
  return out;
}

TEST(StopStrings, CutsAtTheFirstMatchAcrossPieces) {
  const Outcome out = feed({"END", "stop"}, {"one E", "N", "D two stop"});
  EXPECT_EQ(out.text, "one ");
  EXPECT_TRUE(out.matched);
}

TEST(StopStrings, GivesBackWhatOnlyLookedLikeAStop) {
  const Outcome out = feed({"ENDING"}, {"the EN", "D is not the END"});
  EXPECT_EQ(out.text, "the END is not the END");
  EXPECT_FALSE(out.matched);
}

TEST(StopStrings, HoldsBackOnlyWhatMayBecomeAStop) {
  StopStrings stops({"\n\n"});
  EXPECT_EQ(stops.push("a\n"), "a");
  EXPECT_EQ(stops.push("b"), "\nb");
  EXPECT_EQ(stops.push("\n"), "");
  EXPECT_EQ(stops.push("\nc"), "");
  EXPECT_TRUE(stops.matched());
  EXPECT_EQ(stops.push("later"), "");
}

TEST(StopStrings, WithoutStringsPassesAllThrough) {
  EXPECT_EQ(feed({}, {"a", "b"}).text, "ab");
  EXPECT_EQ(feed({""}, {"a", "b"}).text, "ab");
}

// However the text is cut, the result is that of the whole text at once.
TEST(StopStrings, AnyCutGivesTheSameText) {
  std::mt19937 random(7);
  const auto letter = [&] { return static_cast<char>('a' + random() % 2); };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> strings(1 + random() % 3);
    for (std::string& each : strings)
      for (std::size_t n = 1 + random() % 4; n > 0; --n) each += letter();
    std::string text;
    for (std::size_t n = random() % 20; n > 0; --n) text += letter();
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + random() % 4;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const Outcome whole = feed(strings, {text});
    const Outcome cut = feed(strings, pieces);
    EXPECT_EQ(whole.matched, cut.matched) << text;
    EXPECT_EQ(whole.text, cut.text) << text;
    EXPECT_TRUE(text.starts_with(cut.text));
    EXPECT_TRUE(cut.matched || cut.text == text);
  }
}

}  // namespace
}  // namespace mstar
