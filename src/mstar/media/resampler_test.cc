// The resampler against libswresample's own samples (tools/golden/resampling.py), and in any pieces.
#include "mstar/media/resampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "mstar/media/audio_fixture.h"
#include "mstar/media/pcm.h"

namespace mstar {
namespace {

using namespace media_test;

std::vector<float> seeded_noise(std::size_t num_samples) {
  std::uint32_t state = 12345;
  std::vector<float> samples(num_samples);
  for (float& sample : samples) {
    state = state * 1664525u + 1013904223u;
    sample = static_cast<float>(static_cast<int>(state >> 16) / 2 - 16384) / 32768.0f;
  }
  return samples;
}

struct Case {
  unsigned from_hz;
  std::uint16_t num_channels;
  unsigned to_hz;
};

class LikeFfmpeg : public testing::TestWithParam<Case> {};

TEST_P(LikeFfmpeg, EverySample) {
  const auto [from_hz, num_channels, to_hz] = GetParam();
  const auto wav = encode_wav(seeded_noise(3001u * num_channels), from_hz, num_channels);
  ASSERT_TRUE(wav);
  const auto got = decode(*wav, to_hz);
  ASSERT_TRUE(got) << message(got);
  const std::string golden =
      read_file(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/resampling/" + std::to_string(from_hz) + "_" +
                std::to_string(num_channels) + "_" + std::to_string(to_hz) + ".s16");
  ASSERT_FALSE(golden.empty());
  ASSERT_EQ(got->size(), golden.size() / 2);
  std::size_t num_different = 0;
  for (std::size_t i = 0; i < got->size(); ++i) {
    std::int16_t wanted;
    std::memcpy(&wanted, golden.data() + 2 * i, 2);
    const float sample = (*got)[i] * 32768.0f;
    EXPECT_LE(std::abs(sample - wanted), 1.0f) << i;
    num_different += sample != wanted;
  }
  // A sum's last bits differ where libswresample's do, so a sample in some hundreds falls on the other side of a half.
  EXPECT_LE(num_different, got->size() / 500) << "of " << got->size();
}

INSTANTIATE_TEST_SUITE_P(Media, LikeFfmpeg,
                         testing::Values(Case{8000, 1, 16000}, Case{11025, 1, 16000}, Case{12345, 1, 16000},
                                         Case{16000, 2, 16000}, Case{22050, 1, 16000}, Case{24000, 1, 16000},
                                         Case{32000, 1, 16000}, Case{44100, 1, 16000}, Case{44100, 2, 16000},
                                         Case{48000, 2, 16000}, Case{96000, 1, 16000}, Case{37123, 1, 16000},
                                         Case{16000, 1, 24000}),
                         [](const auto& test) {
                           return std::to_string(test.param.from_hz) + "_" + std::to_string(test.param.num_channels) +
                                  "_to_" + std::to_string(test.param.to_hz);
                         });

std::vector<float> in_pieces(std::span<const float> in, std::uint32_t from_hz, std::uint32_t to_hz, std::size_t in_size,
                             std::size_t out_size) {
  Resampler resampler(from_hz, to_hz);
  std::vector<float> out;
  std::vector<float> buffer(out_size);
  while (!in.empty()) {
    const auto [num_consumed, num_produced] = resampler.push(in.first(std::min(in.size(), in_size)), buffer);
    EXPECT_GT(num_consumed + num_produced, 0u);
    if (num_consumed + num_produced == 0) return out;
    in = in.subspan(num_consumed);
    out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(num_produced));
  }
  while (const std::size_t num_produced = resampler.finish(buffer))
    out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(num_produced));
  return out;
}

TEST(Resampler, AnyPiecesGiveTheSameBits) {
  const std::vector<float> in = seeded_noise(30011);
  for (const auto& [from_hz, to_hz] :
       {std::pair{44100u, 16000u}, {8000u, 16000u}, {37123u, 16000u}, {768000u, 1000u}}) {
    const std::vector<float> whole = in_pieces(in, from_hz, to_hz, in.size(), 100000);
    EXPECT_NEAR(static_cast<double>(whole.size()), static_cast<double>(in.size()) * to_hz / from_hz, 1.0);
    for (const auto& [in_size, out_size] : {std::pair{1u, 1u}, {7u, 4096u}, {4096u, 3u}, {333u, 8192u}, {20000u, 1u}})
      EXPECT_EQ(in_pieces(in, from_hz, to_hz, in_size, out_size), whole)
          << from_hz << " " << in_size << " " << out_size;
  }
}

TEST(Resampler, SoundsShorterThanAWindow) {
  const std::vector<float> in = seeded_noise(200);
  for (std::size_t size = 0; size <= in.size(); ++size) {
    const std::vector<float> out = in_pieces(std::span(in).first(size), 48000, 16000, 5, 7);
    EXPECT_LE(out.size(), size / 3 + 1);
    for (const float sample : out) EXPECT_LT(std::abs(sample), 2.0f);
  }
}

}  // namespace
}  // namespace mstar
