// Rotary position embedding as a checkpoint's configuration describes it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "mstar/ops/op_context.h"
#include "mstar/tensor/tensor.h"

namespace mstar::nn {

// Llama 3's stretching of low frequencies (transformers: rope_type "llama3").
struct Llama3Scaling {
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_context_tokens = 8192;
};

// theta^(-2i / rotary_dim) for i < rotary_dim / 2, in f32 as transformers computes them.
std::vector<float> inverse_frequencies(int rotary_dim, double theta);
void scale_llama3(std::vector<float>& frequencies, const Llama3Scaling& scaling);

// How rotated pairs are shared out among the axes of multimodal positions (time, height, width).
enum class AxisLayout : std::uint8_t {
  sections,    // the first sections[0] pairs follow time, the next height, the last width (Qwen2-VL)
  alternating  // time, height, width in turn as far as each one's section reaches; time from there on (Qwen3-VL)
};
// The axis of each pair, from `mrope_section`: how many pairs each axis has, together all of them. bad_model.
Result<std::vector<std::int32_t>> pair_axes(std::span<const int> sections, AxisLayout layout);

class Rotary {
 public:
  // `frequencies`: one per rotated pair. `pair_axes`: the axis of each, none where positions have one. exhausted.
  static Result<Rotary> create(Device& device, std::span<const float> frequencies, bool interleaved,
                               std::span<const std::int32_t> pair_axes = {});
  // x [tokens, heads, head_dim] f32 in place; positions as in ops/rope.
  Status run(OpContext& ops, TensorView x, TensorView positions) const;
  TensorView frequencies() const { return frequencies_.view(); }
  TensorView pair_axes() const { return pair_axes_ ? pair_axes_->view() : TensorView{}; }
  bool interleaved() const { return interleaved_; }
  // That positions must have at least.
  int num_axes() const { return num_axes_; }
  std::size_t workspace_bytes(int num_threads) const;
  std::size_t bytes() const { return frequencies_.bytes() + (pair_axes_ ? pair_axes_->bytes() : 0); }

 private:
  Tensor frequencies_;
  std::optional<Tensor> pair_axes_;
  bool interleaved_ = false;
  int num_axes_ = 1;
};

}  // namespace mstar::nn
