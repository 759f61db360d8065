// PCM and WAV bytes against libsndfile, PNG against libpng.
#include <gmock/gmock.h>
#include <png.h>

#include "mstar/media/audio_fixture.h"
#include "mstar/media/image.h"
#include "mstar/media/pcm.h"

namespace mstar {
namespace {

using namespace media_test;

TEST(Pcm, RoundsAndClips) {
  EXPECT_EQ(to_pcm16(0.0f), 0);
  EXPECT_EQ(to_pcm16(1.0f), 32767);
  EXPECT_EQ(to_pcm16(-1.0f), -32768);
  EXPECT_EQ(to_pcm16(1e30f), 32767);
  EXPECT_EQ(to_pcm16(-std::numeric_limits<float>::infinity()), -32768);
  EXPECT_EQ(to_pcm16(std::nanf("")), 0);
  EXPECT_EQ(to_pcm16(1.5f / 32768), 2);
  EXPECT_EQ(to_pcm16(2.5f / 32768), 2);
  EXPECT_EQ(to_pcm16(-1.5f / 32768), -2);
  for (int v = -32768; v <= 32767; ++v) ASSERT_EQ(to_pcm16(static_cast<float>(v) / 32768.0f), v);
  EXPECT_EQ(encode_pcm16(std::vector<float>{0.5f, -0.25f}), std::string("\x00\x40\x00\xe0", 4));
}

TEST(Pcm, WavHeadersAreWhatTheySay) {
  const std::vector<float> samples = {0.5f, -0.5f, 0.25f, -0.25f};
  const auto wav = encode_wav(samples, 24000, 2);
  ASSERT_TRUE(wav);
  EXPECT_EQ(*wav,
            std::string(
                "RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0\xc0\x5d\0\0\0\x77\x01\0\x04\0\x10\0data\x08\0\0\0", 44) +
                encode_pcm16(samples));
  const auto floats = encode_wav(samples, 24000, 2, WavEncoding::float32);
  ASSERT_TRUE(floats);
  EXPECT_EQ(floats->size(), 58u + 16u);
  for (const auto& [bytes, count] : {std::pair(*wav, 4u), std::pair(*floats, 4u)}) {
    auto source = open_bytes(bytes, 24000);
    ASSERT_TRUE(source) << message(source);
    EXPECT_EQ(source->source_num_channels(), 2u);
    EXPECT_DOUBLE_EQ(*source->duration_s(), 2.0 / 24000);
    EXPECT_THAT(*read_all(*source), testing::ElementsAre(0.0f, 0.0f));
  }
  const auto stream = wav_header(24000, 1, WavEncoding::pcm16, std::nullopt);
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->substr(4, 4), "\xff\xff\xff\xff");
  EXPECT_EQ(stream->substr(40, 4), "\xff\xff\xff\xff");
  EXPECT_FALSE(wav_header(24000, 1, WavEncoding::pcm16, 0xffffffffull));
  EXPECT_FALSE(wav_header(24000, 0, WavEncoding::pcm16, 0));
}

std::vector<std::uint8_t> decode_png(const std::string& bytes, unsigned& width, unsigned& height) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) return {};
  image.format = PNG_FORMAT_RGB;
  width = image.width;
  height = image.height;
  std::vector<std::uint8_t> out(PNG_IMAGE_SIZE(image));
  if (!png_image_finish_read(&image, nullptr, out.data(), 0, nullptr)) return {};
  return out;
}

TEST(Png, RoundTripsAndRepeats) {
  for (const auto& [w, h] : {std::pair(1u, 1u), std::pair(7u, 3u), std::pair(64u, 48u)}) {
    std::vector<std::uint8_t> pixels(std::size_t{3} * w * h);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 37 ^ i >> 3);
    const auto png = encode_png(pixels, w, h);
    ASSERT_TRUE(png) << message(png);
    EXPECT_EQ(png->substr(1, 3), "PNG");
    unsigned got_w = 0;
    unsigned got_h = 0;
    EXPECT_EQ(decode_png(*png, got_w, got_h), pixels);
    EXPECT_EQ(got_w, w);
    EXPECT_EQ(got_h, h);
    EXPECT_EQ(*encode_png(pixels, w, h), *png);
  }
}

TEST(Png, WrongSizesAreRefused) {
  const std::vector<std::uint8_t> pixels(12);
  EXPECT_FALSE(encode_png(pixels, 0, 2));
  EXPECT_FALSE(encode_png(pixels, 2, 3));
  EXPECT_FALSE(encode_png(pixels, 0xffffffff, 0xffffffff));
  EXPECT_TRUE(encode_png(pixels, 2, 2));
}

}  // namespace
}  // namespace mstar
