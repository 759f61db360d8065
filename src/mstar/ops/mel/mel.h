// Log-mel spectrogram as Whisper wants it: 16 kHz, 400-point periodic Hann, hop 160, Slaney filters.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "mstar/ops/op_context.h"

namespace mstar {

inline constexpr int kMelSampleRate = 16000;
inline constexpr int kMelWindowSamples = 400;
inline constexpr int kMelHopSamples = 160;
inline constexpr int kMelBins = kMelWindowSamples / 2 + 1;

// Window, transform and filters, made once at load. Thread: any for const use.
class MelPlan {
 public:
  // 80 or 128 bands; bad_model otherwise.
  static Result<MelPlan> make(int num_mels);
  int num_mels() const { return num_mels_; }
  // [kMelWindowSamples], computed in f64.
  const std::vector<float>& window() const { return window_; }
  // Twiddles exp(-2 pi i k / 400) as cosines and sines, k = 0..399.
  const std::vector<double>& cosines() const { return cosines_; }
  const std::vector<double>& sines() const { return sines_; }
  // [num_mels][kMelBins], Slaney scale and norm, computed in f64.
  const std::vector<float>& filters() const { return filters_; }
  // Bins [first, last) in which a band's filter is not zero.
  int first_bin(int mel) const { return first_bins_[static_cast<std::size_t>(mel)]; }
  int last_bin(int mel) const { return last_bins_[static_cast<std::size_t>(mel)]; }

 private:
  int num_mels_ = 0;
  std::vector<float> window_, filters_;
  std::vector<double> cosines_, sines_;
  std::vector<int> first_bins_, last_bins_;
};

// Samples that `num_frames` frames cover.
inline std::int64_t mel_samples(std::int64_t num_frames) {
  return num_frames > 0 ? (num_frames - 1) * kMelHopSamples + kMelWindowSamples : 0;
}

struct LogMelArgs {
  const MelPlan* plan = nullptr;
  TensorView pcm;  // [>= mel_samples(frames)] f32, padded by the caller: frame f covers samples [160 f, 160 f + 400)
  TensorView out;  // [num_mels, frames] f32; rows may lie apart
};

// out = log10(max(filters * |FFT(window * frame)|^2, 1e-10)). A frame's bits do not depend on the others.
// Errors: internal (shapes). No workspace.
Status log_mel(OpContext& context, const LogMelArgs& args);

struct MelNormaliseArgs {
  TensorView x;       // [num_mels, frames] f32 of log_mel; rows may lie apart
  float maximum = 0;  // of the whole recording, see mel_maximum
  TensorView out;     // same shape, f32 or bf16 (rounded to nearest even); may be x where it is f32
};

// out = (max(x, maximum - 8) + 4) / 4. Errors: internal (shapes).
Status mel_normalise(OpContext& context, const MelNormaliseArgs& args);
// The largest value of [rows, columns] f32 in host memory; -inf when empty.
float mel_maximum(const TensorView& x);

}  // namespace mstar
