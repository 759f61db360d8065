// Every format that libsndfile can write, decoded and compared with what was written.
#include <gmock/gmock.h>

#include "mstar/media/audio_fixture.h"
#include "mstar/media/pcm.h"

namespace mstar {
namespace {

using namespace media_test;

struct FormatCase {
  const char* name;
  int format;
  double tolerance;  // largest difference of a sample, or of the tone's level where the codec is lossy
};

class LosslessFormat : public testing::TestWithParam<FormatCase> {};

TEST_P(LosslessFormat, SamplesWithinQuantum) {
  const FormatCase& c = GetParam();
  const std::vector<float> wanted = tone(440, 0.7, 16000, 16000);
  const std::string bytes = write_audio(c.format, wanted, 16000);
  ASSERT_FALSE(bytes.empty());
  auto source = open_bytes(bytes);
  ASSERT_TRUE(source) << message(source);
  EXPECT_EQ(source->source_rate_hz(), 16000u);
  EXPECT_EQ(source->source_num_channels(), 1u);
  ASSERT_TRUE(source->duration_s());
  EXPECT_DOUBLE_EQ(*source->duration_s(), 1.0);
  const auto got = read_all(*source);
  ASSERT_TRUE(got) << message(got);
  ASSERT_EQ(got->size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR((*got)[i], wanted[i], c.tolerance) << "sample " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Media, LosslessFormat,
                         testing::Values(FormatCase{"wav_u8", SF_FORMAT_WAV | SF_FORMAT_PCM_U8, 1.01 / 128},
                                         FormatCase{"wav_16", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"wav_24", SF_FORMAT_WAV | SF_FORMAT_PCM_24, 0.51 / 32768},
                                         FormatCase{"wav_32", SF_FORMAT_WAV | SF_FORMAT_PCM_32, 0.51 / 32768},
                                         FormatCase{"wav_float", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 0.51 / 32768},
                                         FormatCase{"wav_double", SF_FORMAT_WAV | SF_FORMAT_DOUBLE, 0.51 / 32768},
                                         FormatCase{"wav_ulaw", SF_FORMAT_WAV | SF_FORMAT_ULAW, 0.02},
                                         FormatCase{"wav_alaw", SF_FORMAT_WAV | SF_FORMAT_ALAW, 0.02},
                                         FormatCase{"wavex_16", SF_FORMAT_WAVEX | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"rifx_16", SF_FORMAT_WAV | SF_ENDIAN_BIG | SF_FORMAT_PCM_16,
                                                    1.01 / 32768},
                                         FormatCase{"rf64_16", SF_FORMAT_RF64 | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"w64_16", SF_FORMAT_W64 | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"aiff_16", SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"au_16", SF_FORMAT_AU | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"caf_16", SF_FORMAT_CAF | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"flac_16", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1.01 / 32768},
                                         FormatCase{"flac_24", SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 0.51 / 32768}),
                         [](const auto& test) { return test.param.name; });

class LossyFormat : public testing::TestWithParam<FormatCase> {};

TEST_P(LossyFormat, ToneSurvives) {
  const FormatCase& c = GetParam();
  const std::string bytes = write_audio(c.format, tone(500, 0.5, 48000, 16000), 16000);
  if (bytes.empty()) GTEST_SKIP() << "this libsndfile does not write it";
  const auto got = decode(bytes);
  ASSERT_TRUE(got) << message(got);
  EXPECT_NEAR(static_cast<double>(got->size()), 48000, 2400);
  const auto middle = std::span(*got).subspan(8000, 32000);
  EXPECT_NEAR(level_at(middle, 500, 16000), 0.5, c.tolerance);
  EXPECT_NEAR(rms(middle), 0.5 / std::numbers::sqrt2, c.tolerance);
}

INSTANTIATE_TEST_SUITE_P(Media, LossyFormat,
                         testing::Values(FormatCase{"vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 0.02},
                                         FormatCase{"opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, 0.02},
                                         FormatCase{"ima_adpcm", SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, 0.02},
                                         FormatCase{"gsm", SF_FORMAT_WAV | SF_FORMAT_GSM610, 0.1},
                                         FormatCase{"mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 0.04}),
                         [](const auto& test) { return test.param.name; });

TEST(AudioFormat, Pcm16IsExact) {
  std::vector<std::int16_t> wanted;
  for (int v = -32768; v <= 32767; v += 7) wanted.push_back(static_cast<std::int16_t>(v));
  wanted.push_back(32767);
  auto header = wav_header(16000, 1, WavEncoding::pcm16, wanted.size() * 2);
  ASSERT_TRUE(header);
  const std::string bytes = *header + std::string(reinterpret_cast<const char*>(wanted.data()), wanted.size() * 2);
  const auto got = decode(bytes);
  ASSERT_TRUE(got) << message(got);
  ASSERT_EQ(got->size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ((*got)[i], static_cast<float>(wanted[i]) / 32768.0f) << i;
  }
}

TEST(AudioFormat, SamplesThatAreNotFiniteBecomeSilence) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> samples = {0.25f, std::nanf(""), inf, -inf, 1e30f, -1e30f, -0.5f};
  for (const unsigned rate_hz : {16000u, 44100u}) {
    const auto bytes = encode_wav(samples, rate_hz, 1, WavEncoding::float32);
    ASSERT_TRUE(bytes);
    const auto got = decode(*bytes);
    ASSERT_TRUE(got) << message(got);
    for (const float s : *got) EXPECT_TRUE(std::isfinite(s)) << s;
    if (rate_hz == 16000) {
      EXPECT_THAT(*got, testing::ElementsAre(0.25f, 0.0f, 0.0f, 0.0f, 32767.0f / 32768.0f, -1.0f, -0.5f));
    }
  }
}

TEST(AudioFormat, ChannelsAreAveraged) {
  const std::vector<float> frames = {1.0f, 0.0f, 0.5f, 0.5f, -0.25f, 0.75f};
  const auto stereo = encode_wav(frames, 16000, 2, WavEncoding::float32);
  const auto three = encode_wav(frames, 16000, 3, WavEncoding::float32);
  ASSERT_TRUE(stereo && three);
  EXPECT_THAT(*decode(*stereo), testing::ElementsAre(0.5f, 0.5f, 0.25f));
  EXPECT_THAT(*decode(*three), testing::ElementsAre(0.5f, 10923.0f / 32768));
}

TEST(AudioFormat, Mp3Fixtures) {
  for (const char* name : {"tone500_44k_stereo.mp3", "tone500_id3.mp3"}) {
    auto source = open_bytes(fixture(name));
    ASSERT_TRUE(source) << name << ": " << message(source);
    EXPECT_EQ(source->format_name(), "MP3");
    EXPECT_EQ(source->source_rate_hz(), 44100u);
    ASSERT_TRUE(source->duration_s());
    EXPECT_NEAR(*source->duration_s(), 0.8, 1e-3);
    const auto got = read_all(*source);
    ASSERT_TRUE(got) << message(got);
    EXPECT_NEAR(static_cast<double>(got->size()), 12800, 2);
    EXPECT_NEAR(level_at(std::span(*got).subspan(3200, 6400), 500, 16000), 0.5, 0.03) << name;
  }
}

TEST(AudioFormat, Mp3WithPaddingAndTagsAround) {
  const std::string mp3 = fixture("tone500_44k_stereo.mp3");
  const auto plain = decode(mp3);
  ASSERT_TRUE(plain);
  const std::string empty_tag = "ID3\x04" + std::string(6, '\0');
  const std::string id3v1 = "TAG" + std::string(125, ' ');
  const std::string ape = "APETAGEX" + std::string("\xd0\x07\0\0\x40\0\0\0", 8) + std::string(200, 'x');
  for (const std::string& variant :
       {mp3 + id3v1, mp3 + ape, empty_tag + std::string(3000, '\0') + mp3, empty_tag + mp3}) {
    const auto got = decode(variant);
    ASSERT_TRUE(got) << message(got);
    EXPECT_EQ(*got, *plain);
  }
}

TEST(AudioFormat, ChainedOggPlaysEveryStream) {
  const std::string one = write_audio(SF_FORMAT_OGG | SF_FORMAT_VORBIS, tone(500, 0.5, 16000, 16000), 16000);
  const std::string two = write_audio(SF_FORMAT_OGG | SF_FORMAT_VORBIS, tone(1000, 0.5, 16000, 16000), 16000);
  auto source = open_bytes(one + two);
  ASSERT_TRUE(source) << message(source);
  EXPECT_FALSE(source->duration_s());
  const auto got = read_all(*source);
  ASSERT_TRUE(got) << message(got);
  ASSERT_NEAR(static_cast<double>(got->size()), 32000, 64);
  EXPECT_NEAR(level_at(std::span(*got).subspan(4000, 8000), 500, 16000), 0.5, 0.02);
  EXPECT_NEAR(level_at(std::span(*got).subspan(20000, 8000), 1000, 16000), 0.5, 0.02);
  const auto other_rate = decode(one + write_audio(SF_FORMAT_OGG | SF_FORMAT_VORBIS, tone(500, 0.5, 8000, 8000), 8000));
  EXPECT_THAT(message(other_rate), testing::HasSubstr("differ in sample rate"));
}

}  // namespace
}  // namespace mstar
