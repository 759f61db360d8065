#include "mstar/ops/mel/mel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "mstar/ops/op_test_support.h"
#include "mstar/ops/op_test_targets.h"

namespace mstar {
namespace {

using namespace op_test;

TEST(MelPlan, HasSlaneyFilters) {
  // librosa.filters.mel(sr=16000, n_fft=400, n_mels=80): published constants of the first band's neighbourhood.
  auto plan = MelPlan::make(80);
  ASSERT_TRUE(plan);
  const auto filter = [&](int m, int bin) { return plan->filters()[static_cast<std::size_t>(m * kMelBins + bin)]; };
  EXPECT_NEAR(filter(0, 1), 0.02486259490251541, 1e-7);
  EXPECT_NEAR(filter(1, 1), 0.001990821911022067, 1e-7);
  EXPECT_NEAR(filter(1, 2), 0.022871771827340126, 1e-7);
  EXPECT_EQ(filter(0, 0), 0.0f);
  for (int m = 0; m < 80; ++m) {
    EXPECT_LT(plan->first_bin(m), plan->last_bin(m));
    for (int bin = 0; bin < kMelBins; ++bin)
      EXPECT_EQ(filter(m, bin) > 0, bin >= plan->first_bin(m) && bin < plan->last_bin(m)) << m << " " << bin;
  }
  EXPECT_TRUE(MelPlan::make(128));
  EXPECT_FALSE(MelPlan::make(64));
}

TEST(LogMel, MatchesTheDefinitionInDoubles) {
  on_every_target([&] {
    Host host(2);
    for (const int num_mels : {80, 128}) {
      auto plan = MelPlan::make(num_mels);
      ASSERT_TRUE(plan);
      const std::int64_t frames = 37;
      auto pcm = random_floats(mel_samples(frames) + 5, 1, 0.1f);
      for (std::size_t i = 0; i < pcm.size(); ++i)
        pcm[i] += static_cast<float>(0.3 * std::sin(0.05 * static_cast<double>(i)));
      std::fill(pcm.begin() + 160 * 20, pcm.begin() + 160 * 30, 0.0f);
      Guarded out(num_mels, frames, frames + 3);
      ASSERT_TRUE(log_mel(host.context(), {&*plan, vector(pcm), out.view()}));
      EXPECT_TRUE(out.guards_intact());
      for (std::int64_t f = 0; f < frames; ++f) {
        std::vector<double> power;
        for (int bin = 0; bin < kMelBins; ++bin) {
          double real = 0, imaginary = 0;
          for (int i = 0; i < kMelWindowSamples; ++i) {
            const double x = pcm[static_cast<std::size_t>(160 * f + i)] * plan->window()[static_cast<std::size_t>(i)];
            const double angle = 2 * 3.14159265358979323846 * bin * i / kMelWindowSamples;
            real += x * std::cos(angle);
            imaginary -= x * std::sin(angle);
          }
          power.push_back(real * real + imaginary * imaginary);
        }
        for (int m = 0; m < num_mels; ++m) {
          double sum = 0;
          for (int bin = 0; bin < kMelBins; ++bin)
            sum += power[static_cast<std::size_t>(bin)] * plan->filters()[static_cast<std::size_t>(m * kMelBins + bin)];
          ASSERT_NEAR(out.at(m, f), std::log10(std::max(sum, 1e-10)), 1.5e-6) << m << " " << f;
        }
      }
      // A frame alone.
      for (const std::int64_t f : {0, 17, 36}) {
        Guarded alone(num_mels, 1);
        ASSERT_TRUE(log_mel(host.context(), {&*plan, vector(pcm).slice(160 * f, 160 * f + 400), alone.view()}));
        for (int m = 0; m < num_mels; ++m) EXPECT_EQ(alone.at(m, 0), out.at(m, f));
      }
    }
  });
}

TEST(LogMel, InstructionSetsGiveTheSameBits) {
  Host host(2);
  auto plan = MelPlan::make(80);
  auto pcm = random_floats(mel_samples(41), 1, 0.1f);
  std::vector<Guarded> outs;
  on_every_target([&] {
    outs.emplace_back(80, 41);
    ASSERT_TRUE(log_mel(host.context(), {&*plan, vector(pcm), outs.back().view()}));
    EXPECT_TRUE(outs.back().equals(outs.front()));
  });
}

TEST(MelNormalise, ClampsToEightBelowTheMaximum) {
  on_every_target([&] {
    Host host;
    std::vector<float> x = {-10.0f, 1.5f, -6.6f, -3.0f};
    EXPECT_EQ(mel_maximum(matrix(x, 2, 2)), 1.5f);
    Guarded out(2, 2);
    ASSERT_TRUE(mel_normalise(host.context(), {matrix(x, 2, 2), 1.5f, out.view()}));
    EXPECT_FLOAT_EQ(out.at(0, 0), (-6.5f + 4) / 4);
    EXPECT_FLOAT_EQ(out.at(0, 1), 5.5f / 4);
    EXPECT_FLOAT_EQ(out.at(1, 0), (-6.5f + 4) / 4);
    EXPECT_FLOAT_EQ(out.at(1, 1), 0.25f);
  });
}

TEST(MelNormalise, RoundsToBfloat16) {
  on_every_target([&] {
    Host host;
    constexpr std::int64_t kRows = 3, kColumns = 21, kStride = 25;
    auto x = random_floats(kRows * kColumns, 1, 5.0f);
    std::vector<BFloat16> out(kRows * kStride, BFloat16{7});
    TensorView to(out.data(), DType::bf16, {kRows, kStride});
    to.shape[1] = kColumns;
    ASSERT_TRUE(mel_normalise(host.context(), {matrix(x, kRows, kColumns), 3.0f, to}));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kStride; ++i) {
        const float value = i < kColumns ? x[static_cast<std::size_t>(row * kColumns + i)] : 0;
        const BFloat16 wanted = i < kColumns ? to_bfloat16((std::max(value, -5.0f) + 4) * 0.25f) : BFloat16{7};
        EXPECT_EQ(out[static_cast<std::size_t>(row * kStride + i)].bits, wanted.bits) << row << " " << i;
      }
    }
  });
}

}  // namespace
}  // namespace mstar
