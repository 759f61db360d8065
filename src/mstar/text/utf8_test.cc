#include "mstar/text/utf8.h"

#include <gtest/gtest.h>

#include "mstar/text/byte_level.h"

namespace mstar {
namespace {

// Expected values from Python: bytes.decode("utf-8", "replace").
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r(kReplacementUtf8);
  EXPECT_EQ(replace_invalid_utf8("abc"), "abc");
  EXPECT_EQ(replace_invalid_utf8("\x80"), r);
  EXPECT_EQ(replace_invalid_utf8("\xC0\x80"), r + r);                  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), r);                  // cut
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98z"), r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xE4\xBD\xE5\xA5\xBD"), r + "\xE5\xA5\xBD");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
}

TEST(Utf8, EveryCharacterRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Utf8Kind::valid);
    ASSERT_EQ(step.length_bytes, text.size());
    ASSERT_EQ(step.code_point, c);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8_step(std::string_view(text).substr(0, cut)).kind, Utf8Kind::incomplete);
    }
  }
}

TEST(Utf8, HoldsBackOnlyTheStartOfACharacter) {
  std::string out;
  EXPECT_EQ(append_complete_utf8("a\xF0\x9F\x98", out), 3u);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(append_complete_utf8("b\xF0\x80", out), 0u);
  EXPECT_EQ(out, std::string("ab") + std::string(kReplacementUtf8) + std::string(kReplacementUtf8));
}

TEST(Utf8, StripsAsPython) {
  EXPECT_EQ(strip_spaces(" \t\xE3\x80\x80 a b \xC2\xA0\x1c\n"), "a b");
  EXPECT_EQ(strip_spaces(" \xE2\x80\xA8 "), "");
  EXPECT_EQ(strip_spaces("\xE2\x80\x8B"), "\xE2\x80\x8B");  // a zero-width space is no space
  EXPECT_EQ(strip_spaces("\x80 "), "\x80");
}

TEST(ByteLevel, SpellsEveryByteOnce) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(static_cast<std::uint8_t>(byte)));
  std::string back;
  EXPECT_TRUE(text::append_spelt_bytes(text::spell_bytes(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(text::spell_bytes(" a\n"),
            "\xC4\xA0"
            "a\xC4\x8A");
  EXPECT_FALSE(text::append_spelt_bytes("a b", back));
  EXPECT_EQ(back, all);
}

}  // namespace
}  // namespace mstar
