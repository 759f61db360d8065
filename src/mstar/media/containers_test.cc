// Containers that need the FFmpeg module: decoded where the build made it, explained where not.
#include <gmock/gmock.h>

#include <cstdlib>

#include "mstar/media/audio_fixture.h"
#include "mstar/media/container.h"
#include "mstar/media/frame_reader.h"

namespace mstar {
namespace {

using namespace media_test;
using testing::HasSubstr;

#ifdef MSTAR_TEST_FFMPEG
// Before the first look for the module, which is the only one.
const int kModuleIsNamed = ::setenv("MSTAR_FFMPEG_MODULE", MSTAR_TEST_FFMPEG, 0);
#endif

struct ContainerCase {
  const char* file;
  Container container;
  unsigned rate_hz;
  unsigned num_channels;
};

constexpr ContainerCase kCases[] = {{"tone500.m4a", Container::mp4, 44100, 2},
                                    {"tone500.aac", Container::adts, 44100, 1},
                                    {"tone500.webm", Container::matroska, 48000, 2},
                                    {"tone500_video.mp4", Container::mp4, 44100, 2},
                                    {"tone500_flac.oga", Container::ogg, 16000, 1}};

Container sniffed(const std::string& bytes) {
  const auto found = sniff_container(*memory_bytes(std::make_shared<const std::string>(bytes)));
  return found ? found->container : Container::unknown;
}

TEST(Containers, AreToldByTheirBytes) {
  for (const ContainerCase& c : kCases) EXPECT_EQ(sniffed(fixture(c.file)), c.container) << c.file;
  EXPECT_EQ(sniffed(fixture("tone500_id3.mp3")), Container::mpeg_audio);
  EXPECT_EQ(sniffed(fixture("tone500_44k_stereo.mp3")), Container::mpeg_audio);
  EXPECT_EQ(sniffed("ID3\x03" + std::string(6, '\0') + "fLaC"), Container::flac);
  EXPECT_EQ(sniffed("plain text"), Container::unknown);
}

TEST(Containers, WithoutTheModuleTheErrorSaysHowToGetIt) {
  if (has_ffmpeg()) GTEST_SKIP() << "the FFmpeg module is built";
  for (const ContainerCase& c : kCases) {
    const auto got = decode(fixture(c.file));
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::invalid_request);
    EXPECT_THAT(got.error().message, HasSubstr(std::string(container_name(c.container))));
    EXPECT_THAT(got.error().message, HasSubstr("-DMSTAR_FFMPEG=ON"));
    EXPECT_THAT(got.error().message, HasSubstr("WAV, FLAC, OGG"));
    EXPECT_THAT(got.error().message, HasSubstr("lib/mstar"));
  }
}

class WithModule : public testing::Test {
 protected:
  void SetUp() override {
#ifdef MSTAR_TEST_FFMPEG
    ASSERT_TRUE(has_ffmpeg()) << "the build made the module, but it was not found";
#else
    if (!has_ffmpeg()) GTEST_SKIP() << "the FFmpeg module is not built";
#endif
  }
};

TEST_F(WithModule, TonesDecode) {
  for (const ContainerCase& c : kCases) {
    auto source = open_bytes(fixture(c.file));
    ASSERT_TRUE(source) << c.file << ": " << message(source);
    EXPECT_EQ(source->source_rate_hz(), c.rate_hz) << c.file;
    EXPECT_EQ(source->source_num_channels(), c.num_channels) << c.file;
    ASSERT_TRUE(source->duration_s()) << c.file;
    EXPECT_NEAR(*source->duration_s(), 0.8, 0.1) << c.file;
    const auto got = read_all(*source);
    ASSERT_TRUE(got) << c.file << ": " << message(got);
    EXPECT_NEAR(static_cast<double>(got->size()), 12800, 1100) << c.file;
    EXPECT_NEAR(level_at(std::span(*got).subspan(3200, 6400), 500, 16000), 0.5, 0.03) << c.file;
  }
}

TEST_F(WithModule, PiecesAndRewindGiveTheSameBits) {
  for (const ContainerCase& c : kCases) {
    auto source = open_bytes(fixture(c.file));
    ASSERT_TRUE(source) << message(source);
    const auto whole = read_all(*source);
    ASSERT_TRUE(whole);
    ASSERT_TRUE(source->rewind());
    const auto pieces = read_all(*source, 17);
    ASSERT_TRUE(pieces);
    EXPECT_EQ(*pieces, *whole) << c.file;
  }
}

TEST_F(WithModule, CutAndDamagedFilesAreRefused) {
  for (const char* name : {"tone500.m4a", "tone500_video.mp4"}) {
    const std::string bytes = fixture(name);
    for (const std::size_t divisor : {2, 10}) {
      const auto got = decode(bytes.substr(0, bytes.size() - bytes.size() / divisor));
      ASSERT_FALSE(got) << name << " without 1/" << divisor;
      EXPECT_EQ(got.error().code, Code::invalid_request);
      EXPECT_THAT(got.error().message, HasSubstr("cannot be decoded"));
    }
  }
}

TEST_F(WithModule, EveryPrefixIsSafe) {
  for (const ContainerCase& c : kCases) {
    const std::string bytes = fixture(c.file);
    for (std::size_t size = 0; size < bytes.size(); size += size < 200 ? 7 : 501) {
      const auto got = decode(bytes.substr(0, size));
      if (got) {
        EXPECT_LE(got->size(), 14000u);
      } else {
        EXPECT_EQ(got.error().code, Code::invalid_request);
      }
    }
  }
}

TEST_F(WithModule, PlaylistsAreNotFollowed) {
  const auto got = decode("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\n/etc/hostname\n");
  EXPECT_THAT(message(got), HasSubstr("not audio in a known format"));
}

}  // namespace
}  // namespace mstar
