#include "mstar/text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
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

// The first place where a string ends, the longest of those that do; by trying all of them.
Outcome by_hand(const std::vector<std::string>& strings, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& each : strings)
      if (std::string_view(text).substr(0, end).ends_with(each)) longest = std::max(longest, each.size());
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// 16 strings that nearly match at every byte: what is held back must not be looked at again.
TEST(StopStrings, LongStringsThatNearlyMatchCostNoMore) {
  std::vector<std::string> strings;
  for (char last = 'b'; last < 'r'; ++last) strings.push_back(std::string(4095, 'a') + last);
  StopStrings stops(strings);
  std::size_t num_bytes = 0;
  for (int i = 0; i < 300'000; ++i) num_bytes += stops.push("aaa").size();
  EXPECT_EQ(num_bytes, 900'000u - 4095);
  EXPECT_EQ(stops.push("aq"), "a");
  EXPECT_TRUE(stops.matched());
}

TEST(StopStrings, TheLongerOfTwoThatEndTogetherIsCut) {
  EXPECT_EQ(feed({"c", "bc", "abcd"}, {"xab", "c"}).text, "xa");
  EXPECT_EQ(feed({"abcd", "bc"}, {"abc"}).text, "a");
  EXPECT_EQ(feed({"she", "hers", "his"}, {"us", "her", "s"}).text, "u");
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
    const Outcome wanted = by_hand(strings, text);
    EXPECT_EQ(whole.matched, wanted.matched) << text;
    EXPECT_EQ(whole.text, wanted.text) << text;
    EXPECT_TRUE(text.starts_with(cut.text));
    EXPECT_TRUE(cut.matched || cut.text == text);
  }
}

}  // namespace
}  // namespace mstar
