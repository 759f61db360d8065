// Bytes that are not what they say: each is refused with a message that says why, or decoded where that is right.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "mstar/media/audio_fixture.h"
#include "mstar/media/pcm.h"

namespace mstar {
namespace {

using namespace media_test;
using testing::HasSubstr;

// A mono 16-bit WAV of one second: length fields at 4 and 40, samples from 44.
std::string good_wav() { return *encode_wav(tone(500, 0.5, 16000, 16000), 16000); }

void expect_refused(const std::string& bytes, const std::string& wanted, const std::string& what) {
  const auto got = decode(bytes);
  ASSERT_FALSE(got) << what << ": " << got->size() << " samples were decoded";
  EXPECT_EQ(got.error().code, Code::invalid_request) << what;
  EXPECT_THAT(got.error().message, HasSubstr(wanted)) << what;
}

std::size_t num_samples(const std::string& bytes) {
  const auto got = decode(bytes);
  EXPECT_TRUE(got) << message(got);
  return got ? got->size() : 0;
}

TEST(BadAudio, NotAudio) {
  expect_refused("", "empty", "no bytes");
  expect_refused(std::string(1, '\0'), "not audio in a known format (WAV, FLAC, OGG", "one byte");
  expect_refused("Dear listener, this is a text.\n", "not audio in a known format", "text");
  expect_refused("{\"audio\": \"none\"}", "not audio in a known format", "JSON");
  expect_refused(std::string(100000, '\0'), "not audio in a known format", "zeros");
  expect_refused("ID3\x04" + std::string(2, '\0') + "\x7f\x7f\x7f\x7f" + std::string(100, 'x'), "damaged",
                 "a tag longer than the file");
  expect_refused(std::string("RIFF\x24\0\0\0AVI LIST", 16), "AVI", "a video");
  expect_refused("\xff\xfb\x90\x64" + std::string(5000, 'a'), "damaged", "text after an MP3 frame header");
}

TEST(BadAudio, ShortWavHeaders) {
  const std::string wav = good_wav();
  for (std::size_t size = 12; size < 44; ++size)
    expect_refused(wav.substr(0, size), "WAV file is damaged", "header cut");
  expect_refused(wav.substr(0, 44), "truncated", "header alone");
}

TEST(BadAudio, TruncatedWav) {
  const std::string wav = good_wav();
  expect_refused(wav.substr(0, 44 + 16000), "its header declares 32000 bytes of samples, but 16000 are there", "half");
  expect_refused(wav.substr(0, 1000), "truncated", "a piece");
  // The whole file's length in place of the samples' is a known slip of writers.
  EXPECT_EQ(num_samples(patched(wav, 40, wav.size(), 4)), 16000u);
  EXPECT_EQ(num_samples(wav.substr(0, wav.size() - 1)), 15999u);
}

TEST(BadAudio, StreamedWavLengths) {
  const std::string wav = good_wav();
  for (const std::uint64_t length : {0xffffffffu, 0x7fffffffu, 0x7ffff000u, 0xffffffdbu}) {
    EXPECT_EQ(num_samples(patched(wav, 40, length, 4)), 16000u) << length;
    EXPECT_EQ(num_samples(patched(patched(wav, 40, length, 4), 4, length, 4)), 16000u) << length;
  }
  EXPECT_EQ(num_samples(patched(patched(wav, 40, 0, 4), 4, 0, 4)), 16000u);
  EXPECT_EQ(num_samples(patched(patched(wav, 40, 0, 4), 4, 36, 4)), 16000u);
  EXPECT_EQ(num_samples(patched(patched(wav, 40, 0, 4), 4, 0xffffffff, 4)), 16000u);
  const auto header = wav_header(16000, 1, WavEncoding::pcm16, std::nullopt);
  ASSERT_TRUE(header);
  EXPECT_EQ(num_samples(*header + wav.substr(44)), 16000u);
  const auto float_header = wav_header(16000, 1, WavEncoding::float32, std::nullopt);
  ASSERT_TRUE(float_header);
  EXPECT_EQ(num_samples(*float_header + std::string(4000, '\0')), 1000u);
  expect_refused(*header, "holds no audio", "a streamed header alone");
  // A believable length before other chunks is believed.
  EXPECT_EQ(num_samples(patched(wav, 40, 2000, 4)), 1000u);
  const auto empty = encode_wav({}, 16000);
  ASSERT_TRUE(empty);
  expect_refused(*empty, "holds no audio", "no samples");
  expect_refused(patched(*empty + std::string("LIST\x04\0\0\0INFO", 12), 4, 48, 4), "holds no audio", "only a LIST");
}

TEST(BadAudio, AbsurdWavHeaders) {
  const std::string wav = good_wav();
  expect_refused(patched(wav, 22, 0, 2), "0 channels", "no channels");
  expect_refused(patched(wav, 22, 65535, 2), "65535 channels", "many channels");
  expect_refused(patched(patched(wav, 22, 500, 2), 32, 1000, 2), "500 channels", "500 channels");
  expect_refused(patched(wav, 24, 0, 4), "sample rate of 0 Hz", "no rate");
  expect_refused(patched(wav, 24, 0xffffffff, 4), "sample rate of 4294967295 Hz", "huge rate");
  expect_refused(patched(wav, 24, 10, 4), "sample rate of 10 Hz", "tiny rate");
  expect_refused(patched(wav, 34, 7, 2), "damaged", "7 bits in 2 bytes");
  expect_refused(patched(wav, 34, 0, 2), "damaged", "no bits");
  expect_refused(patched(wav, 32, 3, 2), "damaged", "odd block");
  expect_refused(patched(wav, 20, 0x4711, 2), "codec", "unknown codec");
  expect_refused(patched(wav, 16, 2, 4), "damaged", "short fmt chunk");
  expect_refused(patched(wav, 16, 0xfffffff0, 4), "damaged", "fmt chunk past the end");
  expect_refused("RIFF" + patched(wav, 12, 0x21212121, 4).substr(4), "no fmt chunk", "fmt renamed");
  expect_refused(patched(wav, 36, 0x21212121, 4), "no data chunk", "data renamed");
  std::string many = wav.substr(0, 12);
  for (int i = 0; i < 5000; ++i) many += std::string("junk\0\0\0\0", 8);
  expect_refused(many, "more than 4096 chunks", "chunks without end");
}

TEST(BadAudio, TruncatedAndDamagedFlac) {
  const std::string flac = write_audio(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, tone(500, 0.5, 60000, 16000), 16000);
  expect_refused(flac.substr(0, flac.size() / 2), "damaged or truncated", "half");
  expect_refused(flac.substr(0, 30), "damaged", "a header's part");
  expect_refused("fLaC", "damaged", "magic alone");
  std::string damaged = flac;
  for (std::size_t i = 0; i < 200; ++i) damaged[damaged.size() / 2 + i] = static_cast<char>(i * 37);
  expect_refused(damaged, "damaged", "bytes overwritten");
}

TEST(BadAudio, TruncatedAndDamagedOgg) {
  const std::vector<float> samples = tone(500, 0.5, 64000, 16000);
  for (const int codec : {SF_FORMAT_VORBIS, SF_FORMAT_OPUS}) {
    const std::string ogg = write_audio(SF_FORMAT_OGG | codec, samples, 16000);
    ASSERT_GT(ogg.size(), 1000u);
    expect_refused(ogg.substr(0, ogg.size() - 10), "damaged or truncated", "the end cut");
    expect_refused(ogg.substr(0, 20), "damaged or truncated", "a header's part");
    std::string damaged = ogg;
    damaged[ogg.size() * 2 / 3] = static_cast<char>(damaged[ogg.size() * 2 / 3] ^ 0x55);
    expect_refused(damaged, "no whole Ogg page at byte", "one byte changed");
    expect_refused(ogg + "trailing text", "damaged or truncated", "text at the end");
  }
}

TEST(BadAudio, TruncatedMp3) {
  const std::string mp3 = fixture("tone500_44k_stereo.mp3");
  ASSERT_FALSE(mp3.empty());
  expect_refused(mp3.substr(0, mp3.size() / 2), "frames, but only", "half");
  expect_refused(mp3.substr(0, 100), "damaged", "a frame's part");
}

TEST(BadAudio, NoiseBehindEveryMagic) {
  std::mt19937 random(11);
  std::string noise(20000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string starts[] = {good_wav().substr(0, 20),
                                "FORM" + noise.substr(0, 4) + "AIFF",
                                ".snd",
                                "caff",
                                "fLaC",
                                "OggS",
                                "\xff\xfb\x90\x64",
                                "riff\x2e\x91\xcf\x11",
                                "\x1a\x45\xdf\xa3",
                                std::string("\0\0\0\x18"
                                            "ftypM4A ",
                                            12),
                                "#!AMR\n",
                                "FLV\x01"};
  for (const std::string& start : starts) expect_refused(start + noise, "", start.substr(0, 4));
}

TEST(BadAudio, AnErrorStaysUntilRewind) {
  const std::string flac = write_audio(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, tone(500, 0.5, 60000, 16000), 16000);
  auto source = open_bytes(flac.substr(0, flac.size() / 2));
  ASSERT_TRUE(source);
  std::vector<float> buffer(1000);
  ASSERT_TRUE(source->read(buffer));
  const auto failed = read_all(*source);
  ASSERT_FALSE(failed);
  EXPECT_EQ(message(source->read(buffer)), failed.error().message);
  ASSERT_TRUE(source->rewind());
  EXPECT_TRUE(source->read(buffer));
}

TEST(BadAudio, FilesThatCannotBeRead) {
  const std::string path = testing::TempDir() + "media_bad_" + std::to_string(::getpid());
  const auto missing = AudioSource::open_file(path);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::invalid_request);
  EXPECT_THAT(missing.error().message, HasSubstr("No such file"));
  EXPECT_THAT(message(AudioSource::open_file(testing::TempDir())), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(message(AudioSource::open_file(path)), HasSubstr("not a regular file"));
  ::unlink(path.c_str());
  EXPECT_FALSE(AudioSource::open(std::shared_ptr<const ByteSource>()));
  EXPECT_FALSE(AudioSource::open(std::shared_ptr<const std::string>()));
  EXPECT_FALSE(open_bytes(good_wav(), 0));
}

TEST(ByteCursor, SeeksAndReadsStayInside) {
  std::string text(100000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 131 >> 3);
  ByteCursor cursor(sub_bytes(memory_bytes(std::make_shared<const std::string>(text)), 100, 90000));
  EXPECT_EQ(cursor.size(), 90000);
  EXPECT_EQ(cursor.seek(-1, SEEK_SET), -1);
  EXPECT_EQ(cursor.seek(1, SEEK_END), -1);
  EXPECT_EQ(cursor.seek(INT64_MAX, SEEK_END), -1);
  EXPECT_EQ(cursor.seek(INT64_MIN, SEEK_CUR), -1);
  EXPECT_EQ(cursor.tell(), 0);
  std::string out(200000, '\0');
  EXPECT_EQ(cursor.read(out.data(), -5), 0);
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t at = random() % 90001;
    const std::int64_t wanted = random() % (i % 10 == 0 ? 100000 : 50);
    ASSERT_EQ(cursor.seek(at, SEEK_SET), at);
    const std::int64_t got = cursor.read(out.data(), wanted);
    ASSERT_EQ(got, std::min(wanted, 90000 - at));
    ASSERT_EQ(out.compare(0, static_cast<std::size_t>(got), text, static_cast<std::size_t>(100 + at),
                          static_cast<std::size_t>(got)),
              0);
    ASSERT_EQ(cursor.tell(), at + got);
  }
}

}  // namespace
}  // namespace mstar
