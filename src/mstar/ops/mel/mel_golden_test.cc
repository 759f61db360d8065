// Against what faster-whisper's feature extractor made (tests/golden/mel, tools/golden/mel_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include "mstar/ops/mel/mel.h"
#include "mstar/ops/op_test_support.h"

namespace mstar {
namespace {

using namespace op_test;

// Tensors of our own golden files by name; no parser of outside bytes.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name) {
    std::ifstream file(std::string(MSTAR_SOURCE_DIR) + "/tests/golden/mel/" + name, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    std::uint64_t length = 0;
    if (bytes_.size() > 8) std::memcpy(&length, bytes_.data(), 8);
    header_ = bytes_.substr(8, length);
    data_ = 8 + length;
  }
  template <class T>
  std::vector<T> read(const std::string& tensor) const {
    const auto at = header_.find("\"" + tensor + "\":");
    if (at == std::string::npos) return {};
    const auto offsets = header_.find("\"data_offsets\":[", at) + 16;
    const std::size_t begin = std::stoull(header_.substr(offsets));
    const std::size_t end = std::stoull(header_.substr(header_.find(',', offsets) + 1));
    std::vector<T> out((end - begin) / sizeof(T));
    std::memcpy(out.data(), bytes_.data() + data_ + begin, end - begin);
    return out;
  }

 private:
  std::string bytes_, header_;
  std::size_t data_ = 0;
};

// Reflection as numpy.pad does it, again and again for short sounds.
float reflected(const std::vector<float>& x, std::int64_t i) {
  const auto n = static_cast<std::int64_t>(x.size());
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
  return x[static_cast<std::size_t>(i)];
}

void expect_golden(const std::vector<std::int16_t>& pcm, const std::vector<float>& expected, int num_mels,
                   double tolerance) {
  ASSERT_FALSE(pcm.empty());
  const auto frames = static_cast<std::int64_t>(expected.size()) / num_mels;
  ASSERT_EQ(frames, static_cast<std::int64_t>(pcm.size()) / kMelHopSamples + 1);
  std::vector<float> x;
  for (const std::int16_t sample : pcm) x.push_back(static_cast<float>(sample) / 32768.0f);
  x.resize(x.size() + 160, 0.0f);
  std::vector<float> padded;
  for (std::int64_t i = 0; i < mel_samples(frames); ++i) padded.push_back(reflected(x, i - 200));
  auto plan = MelPlan::make(num_mels);
  ASSERT_TRUE(plan);
  Host host(2);
  Guarded out(num_mels, frames);
  ASSERT_TRUE(log_mel(host.context(), {&*plan, vector(padded), out.view()}));
  const float maximum = mel_maximum(out.view());
  ASSERT_TRUE(mel_normalise(host.context(), {out.view(), maximum, out.view()}));
  double worst = 0;
  for (int m = 0; m < num_mels; ++m)
    for (std::int64_t f = 0; f < frames; ++f)
      worst = std::max<double>(worst, std::fabs(out.at(m, f) - expected[static_cast<std::size_t>(m * frames + f)]));
  EXPECT_LE(worst, tolerance);
  testing::Test::RecordProperty("worst", std::to_string(worst));
}

TEST(MelGolden, SpeechAndSweeps) {
  for (const int num_mels : {80, 128}) {
    for (const std::string sound : {"speech", "sweep"}) {
      SCOPED_TRACE(sound + std::to_string(num_mels));
      const GoldenFile golden(sound + "_" + std::to_string(num_mels) + ".safetensors");
      expect_golden(golden.read<std::int16_t>("pcm"), golden.read<float>("mel"), num_mels, 3e-6);
    }
  }
}

TEST(MelGolden, SoundsShorterThanAFrame) {
  const GoldenFile golden("edges_80.safetensors");
  for (const int n : {1, 40, 41, 100, 159, 160, 161, 200, 239, 240, 399, 400, 401, 640}) {
    SCOPED_TRACE(n);
    expect_golden(golden.read<std::int16_t>("pcm_" + std::to_string(n)), golden.read<float>("mel_" + std::to_string(n)),
                  80, 2e-6);
  }
}

TEST(MelGolden, Filters) {
  const GoldenFile golden("filters.safetensors");
  for (const int num_mels : {80, 128}) {
    const auto expected = golden.read<float>("filters_" + std::to_string(num_mels));
    auto plan = MelPlan::make(num_mels);
    ASSERT_TRUE(plan);
    ASSERT_EQ(expected.size(), plan->filters().size());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(plan->filters()[i], expected[i], 2e-8) << i;
  }
}

}  // namespace
}  // namespace mstar
