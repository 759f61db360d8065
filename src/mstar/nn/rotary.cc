#include "mstar/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

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

Result<std::vector<std::int32_t>> pair_axes(std::span<const int> sections, AxisLayout layout) {
  std::vector<std::int32_t> out;
  for (std::size_t axis = 0; axis < sections.size(); ++axis) {
    if (sections[axis] < 0 || sections[axis] > 4096)
      return bad_model("mrope_section: " + std::to_string(sections[axis]) + " pairs for axis " + std::to_string(axis));
    out.insert(out.end(), static_cast<std::size_t>(sections[axis]), static_cast<std::int32_t>(axis));
  }
  if (layout == AxisLayout::sections) return out;
  const std::size_t num_axes = sections.size();
  for (std::size_t pair = 0; pair < out.size(); ++pair) {
    const std::size_t axis = pair % num_axes, turn = pair / num_axes;
    out[pair] = turn < static_cast<std::size_t>(sections[axis]) ? static_cast<std::int32_t>(axis) : 0;
  }
  return out;
}

Result<Rotary> Rotary::create(Device& device, std::span<const float> frequencies, bool interleaved,
                              std::span<const std::int32_t> pair_axes) {
  Rotary out;
  out.interleaved_ = interleaved;
  MSTAR_TRY_ASSIGN(out.frequencies_,
                   Tensor::allocate(device, DType::f32, {static_cast<std::int64_t>(frequencies.size())}));
  device.copy_to_device(out.frequencies_.view().pointer, frequencies.data(), frequencies.size_bytes(),
                        device.default_stream());
  if (!pair_axes.empty()) {
    if (pair_axes.size() != frequencies.size())
      return bad_model("mrope_section is for " + std::to_string(pair_axes.size()) +
                       " rotated pairs, of which there are " + std::to_string(frequencies.size()));
    MSTAR_TRY_ASSIGN(out.pair_axes_,
                     Tensor::allocate(device, DType::i32, {static_cast<std::int64_t>(pair_axes.size())}));
    device.copy_to_device(out.pair_axes_->view().pointer, pair_axes.data(), pair_axes.size_bytes(),
                          device.default_stream());
    out.num_axes_ = 1 + *std::max_element(pair_axes.begin(), pair_axes.end());
  }
  device.synchronize(device.default_stream());
  return out;
}

Status Rotary::run(OpContext& ops, TensorView x, TensorView positions) const {
  if (num_axes_ > 1 && (positions.shape.rank() != 2 || positions.dim(0) < num_axes_))
    return internal_error("rotary: positions of too few axes");
  return rope(ops, {.x = x,
                    .positions = positions,
                    .inverse_frequencies = frequencies_.view(),
                    .interleaved = interleaved_,
                    .pair_axes = pair_axes()});
}

std::size_t Rotary::workspace_bytes(int num_threads) const {
  return rope_workspace_bytes(2 * frequencies_.view().dim(0), num_threads);
}

}  // namespace mstar::nn
