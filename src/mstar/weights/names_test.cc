#include "mstar/weights/names.h"

#include <gtest/gtest.h>

#include <random>

namespace mstar::weights {
namespace {

using Captures = std::vector<std::string>;

TEST(Names, MatchesStarsAsShortAsTheyCanBe) {
  EXPECT_EQ(match("a.b", "a.b"), Captures{});
  EXPECT_FALSE(match("a.b", "a.bc"));
  EXPECT_EQ(match("layers.*.weight", "layers.12.weight"), Captures{"12"});
  EXPECT_EQ(match("*", ""), Captures{""});
  EXPECT_EQ(match("a*", "a"), Captures{""});
  EXPECT_EQ(match("*.b.*", "a.b.c.b.d"), (Captures{"a", "c.b.d"}));
  EXPECT_EQ(match("x*y*y", "xaybyy"), (Captures{"a", "by"}));
  EXPECT_FALSE(match("ab*ba", "aba"));  // prefix and suffix may not share a character
  EXPECT_FALSE(match("layers.*.weight", "layers.12.bias"));
  EXPECT_FALSE(match("", "a"));
}

TEST(Names, FillsStarsInOrder) {
  EXPECT_EQ(fill("l.*.x.*", Captures{"3", "w"}), "l.3.x.w");
  EXPECT_EQ(fill("plain", Captures{"3"}), "plain");
  EXPECT_EQ(fill("*.*", Captures{"3"}), "3.");
  EXPECT_EQ(num_stars("a.*.b.*"), 2);
}

// Whatever is captured, filling the pattern with it gives the name back; and a name made from a pattern matches it.
TEST(Names, MatchAndFillAreInverse) {
  std::mt19937 random(7);
  const auto text = [&](const char* letters, int longest) {
    std::string out;
    for (auto n = random() % static_cast<unsigned>(longest + 1); n > 0; --n) out += letters[random() % 3];
    return out;
  };
  int matched = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string pattern = text("ab*", 7);
    const std::string name = text("aba", 9);
    if (const auto captures = match(pattern, name)) {
      ++matched;
      EXPECT_EQ(fill(pattern, *captures), name) << pattern;
    }
    std::vector<std::string> parts;
    for (int star = 0; star < num_stars(pattern); ++star) parts.push_back(text("abb", 4));
    EXPECT_TRUE(match(pattern, fill(pattern, parts))) << pattern << " " << fill(pattern, parts);
  }
  EXPECT_GT(matched, 500);
}

TEST(Names, EditDistanceStopsAtItsLimit) {
  EXPECT_EQ(edit_distance("kitten", "sitting", 5), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting", 2), 3);
  EXPECT_EQ(edit_distance("same", "same", 0), 0);
  EXPECT_EQ(edit_distance("", "abc", 3), 3);
  EXPECT_EQ(edit_distance("abc", "", 2), 3);
}

TEST(Names, NearestNameIsNearOrNone) {
  NearestName nearest("decoder.layers.0.attn.weight");
  nearest.consider("encoder.conv1.bias");
  EXPECT_EQ(nearest.best(), "");
  nearest.consider("decoder.layers.0.attn.bias");
  nearest.consider("decoder.layers.0.attn.weights");
  nearest.consider("decoder.layers.10.attn.weigh");
  EXPECT_EQ(nearest.best(), "decoder.layers.0.attn.weights");
}

TEST(Names, ShowsOutsideNamesSafely) {
  EXPECT_EQ(show_name("a.b"), "'a.b'");
  EXPECT_EQ(show_name("a\n\x1b[0m\\\xff"), "'a\\x0a\\x1b[0m\\x5c\\xff'");
  EXPECT_LT(show_name(std::string(5000, 'x')).size(), 130u);
}

}  // namespace
}  // namespace mstar::weights
