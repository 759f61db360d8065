// Resampling, streaming in any sizes, rewinding, and memory that does not grow with the audio.
#include "mstar/media/audio_source.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "mstar/media/audio_fixture.h"
#include "mstar/media/pcm.h"

namespace mstar {
namespace {

using namespace media_test;

std::string wav_of(const std::vector<float>& interleaved, unsigned rate_hz, std::uint16_t num_channels = 1) {
  auto bytes = encode_wav(interleaved, rate_hz, num_channels);
  return bytes ? std::move(*bytes) : std::string();
}

struct RateCase {
  unsigned from_hz;
  unsigned to_hz;
  std::uint16_t num_channels;
};

class Resample : public testing::TestWithParam<RateCase> {};

TEST_P(Resample, ToneKeepsFrequencyLevelAndPlace) {
  const auto [from_hz, to_hz, num_channels] = GetParam();
  const double hz = from_hz < 8000 ? 400 : 1000;
  const std::string bytes = wav_of(tone(hz, 0.5, from_hz, from_hz, num_channels), from_hz, num_channels);
  const auto got = decode(bytes, to_hz);
  ASSERT_TRUE(got) << message(got);
  EXPECT_NEAR(static_cast<double>(got->size()), to_hz, 1);  // one second
  // The middle half, away from the edges' ringing, equals the ideal tone sample by sample: level, frequency and no
  // shift.
  const std::vector<float> ideal = tone(hz, 0.5, to_hz, to_hz);
  double worst = 0;
  for (std::size_t i = to_hz / 4; i < to_hz * 3 / 4; ++i) {
    worst = std::max(worst, static_cast<double>(std::abs((*got)[i] - ideal[i])));
  }
  EXPECT_LT(worst, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Media, Resample,
                         testing::Values(RateCase{44100, 16000, 2}, RateCase{48000, 16000, 2}, RateCase{8000, 16000, 1},
                                         RateCase{11025, 16000, 1}, RateCase{22050, 16000, 1},
                                         RateCase{192000, 16000, 6}, RateCase{4000, 16000, 1},
                                         RateCase{16000, 24000, 1}, RateCase{37123, 16000, 2}),
                         [](const auto& test) {
                           return std::to_string(test.param.from_hz) + "_to_" + std::to_string(test.param.to_hz);
                         });

TEST(Resample, WhatIsAboveTheNewRateIsRemoved) {
  const auto got = decode(wav_of(tone(10000, 0.5, 44100, 44100), 44100));
  ASSERT_TRUE(got);
  EXPECT_LT(rms(std::span(*got).subspan(4000, 8000)), 1e-4);
}

std::string noise_wav(unsigned rate_hz, std::uint16_t num_channels, std::size_t num_frames) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> samples(num_frames * num_channels);
  for (float& s : samples) s = uniform(random);
  return wav_of(samples, rate_hz, num_channels);
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST(AudioSource, AnyReadSizesGiveTheSameBits) {
  const std::vector<float> mono = tone(300, 0.6, 30000, 16000);
  const std::string files[] = {noise_wav(16000, 1, 30001),
                               noise_wav(44100, 2, 50021),
                               noise_wav(8000, 1, 9999),
                               write_audio(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, mono, 48000),
                               write_audio(SF_FORMAT_OGG | SF_FORMAT_VORBIS, mono, 44100),
                               write_audio(SF_FORMAT_OGG | SF_FORMAT_OPUS, mono, 48000),
                               fixture("tone500_44k_stereo.mp3")};
  std::mt19937 random(3);
  for (const std::string& file : files) {
    ASSERT_FALSE(file.empty());
    const auto whole = decode(file);
    ASSERT_TRUE(whole) << message(whole);
    for (const std::size_t piece : {1, 7, 333, 4096, 4097}) {
      auto source = open_bytes(file);
      ASSERT_TRUE(source);
      const auto got = read_all(*source, piece);
      ASSERT_TRUE(got);
      expect_same_bits(*got, *whole);
    }
    auto source = open_bytes(file);
    ASSERT_TRUE(source);
    std::vector<float> pieces;
    std::vector<float> buffer(9000);
    while (true) {
      const auto got = source->read(std::span(buffer).first(1 + random() % 9000));
      ASSERT_TRUE(got);
      if (*got == 0) break;
      pieces.insert(pieces.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(*got));
    }
    expect_same_bits(pieces, *whole);
  }
}

TEST(AudioSource, RewindGivesTheSameBits) {
  const std::vector<float> mono = tone(300, 0.6, 30000, 16000);
  const std::string files[] = {noise_wav(44100, 2, 50021), write_audio(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, mono, 16000),
                               write_audio(SF_FORMAT_OGG | SF_FORMAT_VORBIS, mono, 44100),
                               write_audio(SF_FORMAT_OGG | SF_FORMAT_OPUS, mono, 48000),
                               fixture("tone500_44k_stereo.mp3")};
  for (const std::string& file : files) {
    auto source = open_bytes(file);
    ASSERT_TRUE(source) << message(source);
    const auto first = read_all(*source);
    ASSERT_TRUE(first);
    ASSERT_TRUE(source->rewind());
    const auto again = read_all(*source);
    ASSERT_TRUE(again);
    expect_same_bits(*again, *first);
    std::vector<float> some(5000);
    ASSERT_TRUE(source->rewind());
    ASSERT_TRUE(source->read(some));
    ASSERT_TRUE(source->rewind());
    const auto after_part = read_all(*source);
    ASSERT_TRUE(after_part);
    expect_same_bits(*after_part, *first);
  }
}

TEST(AudioSource, TheEndStaysTheEnd) {
  for (const unsigned rate_hz : {16000u, 44100u}) {
    auto source = open_bytes(noise_wav(rate_hz, 1, 5000));
    ASSERT_TRUE(source);
    std::vector<float> buffer(100000);
    const auto got = source->read(buffer);
    ASSERT_TRUE(got);
    EXPECT_GT(*got, 0u);
    for (int i = 0; i < 3; ++i) {
      const auto end = source->read(buffer);
      ASSERT_TRUE(end) << message(end);
      EXPECT_EQ(*end, 0u);
    }
    EXPECT_EQ(*source->read({}), 0u);
  }
}

// A 16-bit WAV of any length whose bytes are made when they are read.
class VirtualWav final : public ByteSource {
 public:
  VirtualWav(unsigned rate_hz, std::uint16_t num_channels, std::uint64_t num_frames)
      : VirtualWav(*wav_header(rate_hz, num_channels, WavEncoding::pcm16, num_frames * num_channels * 2),
                   num_frames * num_channels * 2) {}
  VirtualWav(std::string header, std::uint64_t samples_bytes)
      : samples_bytes_(samples_bytes), header_(std::move(header)) {}

  std::uint64_t size_bytes() const override { return header_.size() + samples_bytes_; }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::uint64_t end = std::min<std::uint64_t>(size_bytes(), offset + out.size());
    std::uint64_t at = offset;
    while (at < end) {
      const bool in_header = at < header_.size();
      const std::string& from = in_header ? header_ : period_;
      const std::uint64_t skip = in_header ? at : (at - header_.size()) % period_.size();
      const std::uint64_t count = std::min(end - at, from.size() - skip);
      std::memcpy(out.data() + (at - offset), from.data() + skip, count);
      at += count;
    }
    return static_cast<std::size_t>(at - offset);
  }

 private:
  std::uint64_t samples_bytes_;
  std::string header_;
  std::string period_ = encode_pcm16(tone(440, 0.3, 16000, 16000));
};

std::size_t resident_bytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%zu %zu", &total, &resident) != 2) resident = 0;
  if (file) std::fclose(file);
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void expect_bounded_memory(std::shared_ptr<const ByteSource> bytes, double duration_s) {
  auto source = AudioSource::open(std::move(bytes));
  ASSERT_TRUE(source) << message(source);
  EXPECT_DOUBLE_EQ(*source->duration_s(), duration_s);
  std::vector<float> buffer(48000);
  ASSERT_TRUE(source->read(buffer));
  const std::size_t before = resident_bytes();
  std::size_t peak = before;
  std::size_t total = buffer.size();
  while (true) {
    const auto got = source->read(buffer);
    ASSERT_TRUE(got) << message(got);
    if (*got == 0) break;
    total += *got;
    peak = std::max(peak, resident_bytes());
  }
  EXPECT_NEAR(static_cast<double>(total), duration_s * 16000, 1);
  EXPECT_LT(peak - before, std::size_t{24} << 20);  // the samples are 40 to 690 MB
}

TEST(AudioSource, MemoryDoesNotGrowOverThreeHours) {
  expect_bounded_memory(std::make_shared<VirtualWav>(16000, 1, 3 * 3600 * 16000ull), 3 * 3600);
}

TEST(AudioSource, MemoryDoesNotGrowWhileResampling) {
  expect_bounded_memory(std::make_shared<VirtualWav>(44100, 2, 600 * 44100ull), 600);
}

TEST(AudioSource, FilesOverFourGigabytes) {
  constexpr std::uint64_t kSamplesBytes = 3ull << 31;
  const std::string wav = *wav_header(16000, 1, WavEncoding::pcm16, std::nullopt);
  std::string sizes(28, '\0');
  sizes = patched(patched(sizes, 0, kSamplesBytes + 72, 8), 8, kSamplesBytes, 8);
  const std::string rf64 = "RF64" + wav.substr(4, 8) + std::string("ds64\x1c\0\0\0", 8) + sizes + wav.substr(12);
  auto source = AudioSource::open(std::make_shared<VirtualWav>(rf64, kSamplesBytes));
  ASSERT_TRUE(source) << message(source);
  ASSERT_TRUE(source->duration_s());
  EXPECT_DOUBLE_EQ(*source->duration_s(), static_cast<double>(kSamplesBytes) / 32000);
  EXPECT_THAT(message(AudioSource::open(std::make_shared<VirtualWav>(wav, kSamplesBytes))),
              testing::HasSubstr("more than 4 GiB"));
}

TEST(AudioSource, ThreadsDoNotDisturbEachOther) {
  const std::vector<float> mono = tone(300, 0.6, 20000, 16000);
  const std::string files[] = {noise_wav(44100, 2, 30000), write_audio(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, mono, 48000),
                               write_audio(SF_FORMAT_OGG | SF_FORMAT_VORBIS, mono, 44100),
                               fixture("tone500_44k_stereo.mp3"), "this is no audio"};
  std::vector<Result<std::vector<float>>> wanted;
  for (const std::string& file : files) wanted.push_back(decode(file));
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 10; ++i) {
        const std::size_t k = (t + i) % std::size(files);
        const auto got = decode(files[k]);
        const bool same =
            got.has_value() == wanted[k].has_value() && (got ? *got == *wanted[k] : message(got) == message(wanted[k]));
        if (!same) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(AudioSource, FileAndMemoryAgree) {
  const std::string path = testing::TempDir() + "media_test_" + std::to_string(::getpid()) + ".bin";
  for (const std::string& bytes : {noise_wav(22050, 2, 40000), fixture("tone500_44k_stereo.mp3")}) {
    std::ofstream(path, std::ios::binary) << bytes;
    auto file = AudioSource::open_file(path);
    ASSERT_TRUE(file) << message(file);
    const auto from_file = read_all(*file, 12345);
    ASSERT_TRUE(from_file);
    expect_same_bits(*from_file, *decode(bytes));
  }
  // Cut while it is open: an error, not a signal.
  std::ofstream(path, std::ios::binary) << noise_wav(16000, 1, 400000);
  auto file = AudioSource::open_file(path);
  ASSERT_TRUE(file);
  std::filesystem::resize_file(path, 20000);
  const auto got = read_all(*file);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::invalid_request);
  std::filesystem::remove(path);
}

TEST(AudioSource, OwnedSpanIsKeptAlive) {
  auto owner = std::make_shared<const std::string>(noise_wav(16000, 1, 10000));
  const std::weak_ptr<const std::string> watch = owner;
  const auto bytes = std::as_bytes(std::span(*owner));
  auto source = AudioSource::open(bytes, owner);
  ASSERT_TRUE(source);
  owner.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(read_all(*source)->size(), 10000u);
}

TEST(AudioSource, SpeechClips) {
  const std::filesystem::path folder = "/usr/share/pocketsphinx/test/data/librivox";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "pocketsphinx-testdata is not installed";
  int num_clips = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".wav") continue;
    ++num_clips;
    auto source = AudioSource::open_file(entry.path().string());
    ASSERT_TRUE(source) << message(source);
    const auto got = read_all(*source);
    ASSERT_TRUE(got);
    // These are plain 44-byte headers: compare with the raw samples.
    const std::string raw = read_file(entry.path().string()).substr(44);
    ASSERT_EQ(got->size(), raw.size() / 2);
    for (std::size_t i = 0; i < got->size(); ++i) {
      std::int16_t sample = 0;
      std::memcpy(&sample, raw.data() + 2 * i, 2);
      ASSERT_EQ((*got)[i], static_cast<float>(sample) / 32768.0f);
    }
  }
  EXPECT_GE(num_clips, 5);
}

}  // namespace
}  // namespace mstar
