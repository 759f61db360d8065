#include "mstar/media/resampler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "mstar/media/resampler_kernel.h"

namespace mstar {
namespace {

constexpr double kNumTaps = 32;
constexpr double kCutoff = 0.97;
constexpr double kBeta = 9;
constexpr std::int64_t kMaxPhases = 1024;
constexpr std::size_t kHeldSamples = 4096;

// Modified Bessel function of the first kind, order 0, by its power series; x <= kBeta.
double bessel_i0(double x) {
  const double quarter = x * x / 4;
  double term = 1;
  double sum = 1;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= quarter / (static_cast<double>(k) * k);
    sum += term;
  }
  return sum;
}

}  // namespace

Resampler::Resampler(std::uint32_t from_hz, std::uint32_t to_hz) : to_hz_(to_hz) {
  const std::int64_t exact_phases = to_hz_ / std::gcd(static_cast<std::int64_t>(from_hz), to_hz_);
  num_phases_ = std::min(exact_phases, kMaxPhases);
  step_phases_ = from_hz * num_phases_ / to_hz_;
  step_rest_ = from_hz * num_phases_ % to_hz_;
  make_bank(std::min(static_cast<double>(to_hz) * kCutoff / from_hz, 1.0));
}

void Resampler::make_bank(double factor) {
  num_taps_ = (static_cast<std::size_t>(std::ceil(kNumTaps / factor)) + 1) / 2 * 2;
  center_ = (num_taps_ - 1) / 2;
  stride_ = (num_taps_ + kResamplerLanes - 1) / kResamplerLanes * kResamplerLanes;
  bank_.assign(static_cast<std::size_t>(num_phases_ + 1) * stride_, 0.0f);
  const auto tap = [&](std::int64_t phase, std::size_t i) {
    const double place = static_cast<double>(i) - static_cast<double>(center_) -
                         static_cast<double>(phase) / static_cast<double>(num_phases_);
    const double x = std::numbers::pi * place * factor;
    const double w = 2 * place / static_cast<double>(num_taps_);
    return (x == 0 ? 1.0 : std::sin(x) / x) * bessel_i0(kBeta * std::sqrt(std::max(1 - w * w, 0.0)));
  };
  // Phase 0 alone is brought to a sum of 1, as in libswresample; the others' sums differ from it by 1e-5 at most.
  double sum = 0;
  for (std::size_t i = 0; i < num_taps_; ++i) sum += tap(0, i);
  // Half of the bank is the other half backwards.
  for (std::int64_t phase = 0; phase <= num_phases_ / 2; ++phase) {
    float* row = bank_.data() + static_cast<std::size_t>(phase) * stride_;
    float* mirrored = bank_.data() + static_cast<std::size_t>(num_phases_ - phase) * stride_;
    for (std::size_t i = 0; i < num_taps_; ++i) {
      row[i] = static_cast<float>(tap(phase, i) / sum);
      mirrored[num_taps_ - 1 - i] = row[i];
    }
  }
}

Resampler::Progress Resampler::push(std::span<const float> in, std::span<float> out) {
  Progress progress;
  if (start_ >= kHeldSamples || start_ >= held_.size()) {
    const std::size_t drop = std::min(start_, held_.size());
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(drop));
    start_ -= drop;
  }
  const std::size_t room = 2 * kHeldSamples + num_taps_;
  if (held_.size() < room) {
    progress.num_consumed = std::min(in.size(), room - held_.size());
    held_.insert(held_.end(), in.begin(), in.begin() + static_cast<std::ptrdiff_t>(progress.num_consumed));
  }
  if (!begun_ && held_.size() > num_taps_) mirror_start();
  if (begun_) progress.num_produced = produce(out);
  return progress;
}

std::size_t Resampler::finish(std::span<float> out) {
  if (!begun_) {
    if (held_.empty()) return 0;
    mirror_start();
  }
  if (!ended_) {
    // What is whole goes out first: how far the end is mirrored depends on what is left then.
    const std::size_t num_produced = produce(out);
    if (num_produced == out.size()) return num_produced;
    mirror_end();
    return num_produced + produce(out.subspan(num_produced));
  }
  return produce(out);
}

// Sample -k is sample k.
void Resampler::mirror_start() {
  std::vector<float> before(center_, 0.0f);
  for (std::size_t k = 1; k <= center_ && k < held_.size(); ++k) before[center_ - k] = held_[k];
  held_.insert(held_.begin(), before.begin(), before.end());
  begun_ = true;
}

// Sample n - 1 + k is sample n - k, for half a window of what the next output has of its own.
void Resampler::mirror_end() {
  ended_ = true;
  if (start_ >= held_.size()) return;
  const std::size_t num_mirrored = (std::min(num_held(), num_taps_) + 1) / 2;
  const std::size_t end = held_.size();
  held_.reserve(end + num_mirrored);
  for (std::size_t k = 1; k <= num_mirrored; ++k) held_.push_back(held_[end - k]);
}

std::size_t Resampler::produce(std::span<float> out) {
  std::size_t num_produced = 0;
  while (num_produced < out.size() && start_ + num_taps_ <= held_.size()) {
    const float* window = held_.data() + start_;
    const float* row = bank_.data() + static_cast<std::size_t>(phase_) * stride_;
    float value = resampler_dot(window, row, num_taps_);
    if (step_rest_ != 0) {
      const float next = resampler_dot(window, row + stride_, num_taps_);
      value += (next - value) * static_cast<float>(rest_) / static_cast<float>(to_hz_);
    }
    out[num_produced++] = value;
    rest_ += step_rest_;
    phase_ += step_phases_;
    if (rest_ >= to_hz_) {
      rest_ -= to_hz_;
      ++phase_;
    }
    start_ += static_cast<std::size_t>(phase_ / num_phases_);
    phase_ %= num_phases_;
  }
  return num_produced;
}

}  // namespace mstar
