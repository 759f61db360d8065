#include "mstar/nn/rotary.h"

#include <cmath>
#include <numbers>

#include "mstar/ops/rope/rope.h"

namespace mstar::nn {

std::vector<float> inverse_frequencies(int rotary_dim, double theta) {
  std::vector<float> out(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    out[i] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
  return out;
}

void scale_llama3(std::vector<float>& frequencies, const Llama3Scaling& scaling) {
  const double low_wavelength = scaling.original_context_tokens / scaling.low_frequency_factor;
  const double high_wavelength = scaling.original_context_tokens / scaling.high_frequency_factor;
  for (float& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency = static_cast<float>(frequency / scaling.factor);
      continue;
    }
    const double smooth = (scaling.original_context_tokens / wavelength - scaling.low_frequency_factor) /
                          (scaling.high_frequency_factor - scaling.low_frequency_factor);
    frequency = static_cast<float>((1 - smooth) * frequency / scaling.factor + smooth * frequency);
  }
}

Result<Rotary> Rotary::create(Device& device, std::span<const float> frequencies, bool interleaved) {
  Rotary out;
  out.interleaved_ = interleaved;
  MSTAR_TRY_ASSIGN(out.frequencies_,
                   Tensor::allocate(device, DType::f32, {static_cast<std::int64_t>(frequencies.size())}));
  device.copy_to_device(out.frequencies_.view().pointer, frequencies.data(), frequencies.size_bytes(),
                        device.default_stream());
  device.synchronize(device.default_stream());
  return out;
}

Status Rotary::run(OpContext& ops, TensorView x, TensorView positions) const {
  return rope(
      ops, {.x = x, .positions = positions, .inverse_frequencies = frequencies_.view(), .interleaved = interleaved_});
}

std::size_t Rotary::workspace_bytes(int num_threads) const {
  return rope_workspace_bytes(2 * frequencies_.view().dim(0), num_threads);
}

}  // namespace mstar::nn
