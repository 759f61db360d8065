#include "transcribe_live.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mstar::apps {
namespace {

using testing::HasSubstr;

std::string number(std::uint32_t value, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += static_cast<char>(value >> (8 * i) & 255);
  return out;
}
std::string wav(std::uint32_t tag, std::uint32_t channels, std::uint32_t rate, std::uint32_t bits,
                const std::string& before = "") {
  return "RIFF" + number(0xFFFFFFFF, 4) + "WAVE" + before + "fmt " + number(16, 4) + number(tag, 2) +
         number(channels, 2) + number(rate, 4) + number(rate * channels * bits / 8, 4) +
         number(channels * bits / 8, 2) + number(bits, 2) + "data" + number(0xFFFFFFFF, 4) + "abcd";
}

TEST(LiveFormat, OfAWavStreamOrRawSamples) {
  LiveFormat raw;
  raw.rate_hz = 8000;
  const auto format = live_format(wav(1, 2, 44100, 16), raw);
  ASSERT_TRUE(format && *format);
  EXPECT_EQ((*format)->rate_hz, 44100u);
  EXPECT_EQ((*format)->num_channels, 2);
  EXPECT_EQ((*format)->header_bytes, 44u);
  const auto later = live_format(wav(1, 1, 16000, 16, "LIST" + number(5, 4) + "abcde\0"), raw);
  EXPECT_FALSE(later && *later) << "five bytes take six";
  const auto samples = live_format(std::string(100, '\1'), raw);
  ASSERT_TRUE(samples && *samples);
  EXPECT_EQ((*samples)->rate_hz, 8000u);
  const std::string whole = wav(1, 1, 16000, 16);
  for (std::size_t size = 0; size < 44; ++size) {
    const auto part = live_format(whole.substr(0, size), raw);
    ASSERT_TRUE(part);
    EXPECT_FALSE(*part) << size;
  }
}

TEST(LiveFormat, WhatCannotBeHeardIsSaid) {
  EXPECT_THAT(live_format("fLaC" + std::string(20, '\0'), {}).error().message, HasSubstr("ffmpeg"));
  EXPECT_THAT(live_format(wav(3, 1, 16000, 32), {}).error().message, HasSubstr("16-bit"));
  EXPECT_THAT(live_format(wav(1, 9, 16000, 16), {}).error().message, HasSubstr("channels"));
  EXPECT_THAT(live_format("RIFF1234WAVE" + std::string(5000, 'x'), {}).error().message, HasSubstr("4096"));
  std::mt19937 random(2);
  for (int turn = 0; turn < 2000; ++turn) {
    std::string bytes = wav(1, 1, 16000, 16);
    for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    (void)live_format(bytes.substr(0, random() % (bytes.size() + 1)), {});
  }
}

}  // namespace
}  // namespace mstar::apps
