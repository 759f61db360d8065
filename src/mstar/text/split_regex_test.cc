#include "mstar/text/split_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mstar/text/pre_tokenizer.h"

namespace mstar::text {
namespace {

std::vector<std::string> parts(std::string_view pattern, std::string_view text) {
  const auto regex = SplitRegex::compile(pattern);
  EXPECT_TRUE(regex) << regex.error().message;
  if (!regex) return {};
  std::vector<SplitRange> ranges;
  regex->split(text, ranges);
  std::vector<std::string> out;
  for (const SplitRange& range : ranges) {
    out.push_back((range.is_match ? "+" : "-") + std::string(text.substr(range.begin, range.end - range.begin)));
  }
  return out;
}

TEST(SplitRegex, CoversTheText) {
  EXPECT_THAT(parts("\\p{L}+", "ab, cd"), testing::ElementsAre("+ab", "-, ", "+cd"));
  EXPECT_THAT(parts("x", ""), testing::IsEmpty());
  EXPECT_THAT(parts("x*", "axb"), testing::ElementsAre("+", "-a", "+x", "-b", "+"));
}

TEST(SplitRegex, MeansWhatOnigurumaMeans) {
  // U+180E is a space to PCRE2 only; U+0085 to both.
  EXPECT_THAT(parts("\\s", "\xE1\xA0\x8E\xC2\x85"), testing::ElementsAre("-\xE1\xA0\x8E", "+\xC2\x85"));
  EXPECT_THAT(parts("[^\\S\\n]", " \n"), testing::ElementsAre("+ ", "-\n"));
  // A combining mark is a word character.
  EXPECT_THAT(parts("\\w+", "e\xCC\x81 "), testing::ElementsAre("+e\xCC\x81", "- "));
  // Lines begin and end at line feeds.
  EXPECT_THAT(parts("^a$", "a\na"), testing::ElementsAre("+a", "-\n", "+a"));
  // U+3001 has Han among its script extensions only.
  EXPECT_THAT(parts("\\p{Han}", "\xE3\x80\x81\xE4\xBD\xA0"), testing::ElementsAre("-\xE3\x80\x81", "+\xE4\xBD\xA0"));
  EXPECT_THAT(parts("\\u4f60|\\x41|\\x{e9}",
                    "\xE4\xBD\xA0"
                    "A\xC3\xA9"),
              testing::SizeIs(3));
}

TEST(SplitRegex, RefusesWhatItCannotTranslate) {
  for (const char* pattern : {"[a&&b]",
                              "[a[b]]",
                              "\\h",
                              "\\bx",
                              "\\Ra",
                              "\\K",
                              "\\C",
                              "(?<n>a)",
                              "(?R)",
                              "(?1)",
                              "(*LIMIT_MATCH=1)a",
                              "(?#x)",
                              "a{,3}",
                              "a{2}+",
                              "a{2}?",
                              "{",
                              "[a",
                              "(",
                              "a)",
                              "\\",
                              "\\p{",
                              "\\pL",
                              "\\p{Nonsense}",
                              "\\1",
                              "[\\W]",
                              "\\xff",
                              "\xFF"}) {
    const auto regex = SplitRegex::compile(pattern);
    ASSERT_FALSE(regex) << pattern;
    EXPECT_EQ(regex.error().code, Code::bad_model);
  }
  EXPECT_FALSE(SplitRegex::compile(std::string(20000, 'a')));
}

TEST(SplitRegex, LiteralTakesNothingAsSyntax) {
  const std::string all = "a.b*c[d](e){f}^$|\\?+-#/& \xE4\xBD\xA0";
  const auto regex = SplitRegex::literal(all);
  ASSERT_TRUE(regex);
  std::vector<SplitRange> ranges;
  regex->split("x" + all + "y", ranges);
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_TRUE(ranges[1].is_match);
}

TEST(SplitRegex, EndsOnCatastrophicPatterns) {
  const auto regex = SplitRegex::compile("(a+)+b");
  ASSERT_TRUE(regex);
  std::vector<SplitRange> ranges;
  const std::string text(5000, 'a');
  regex->split(text, ranges);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].end, text.size());
}

TEST(SplitBehavior, AsThePublishedExamples) {
  const std::string_view text = "The-final--countdown";
  const auto regex = SplitRegex::literal("-");
  ASSERT_TRUE(regex);
  const auto apply = [&](SplitBehavior behavior) {
    std::vector<SplitRange> ranges;
    regex->split(text, ranges);
    apply_split_behavior(behavior, ranges);
    std::vector<std::string> out;
    for (const SplitRange& range : ranges) out.emplace_back(text.substr(range.begin, range.end - range.begin));
    return out;
  };
  using testing::ElementsAre;
  EXPECT_THAT(apply(SplitBehavior::removed), ElementsAre("The", "final", "countdown"));
  EXPECT_THAT(apply(SplitBehavior::isolated), ElementsAre("The", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(apply(SplitBehavior::merged_with_previous), ElementsAre("The-", "final-", "-", "countdown"));
  EXPECT_THAT(apply(SplitBehavior::merged_with_next), ElementsAre("The", "-final", "-", "-countdown"));
  EXPECT_THAT(apply(SplitBehavior::contiguous), ElementsAre("The", "-", "final", "--", "countdown"));
}

}  // namespace
}  // namespace mstar::text
