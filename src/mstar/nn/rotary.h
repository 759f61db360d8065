// Rotary position embedding as a checkpoint's configuration describes it.
#pragma once

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

class Rotary {
 public:
  // `frequencies`: one per rotated pair. exhausted.
  static Result<Rotary> create(Device& device, std::span<const float> frequencies, bool interleaved);
  // x [tokens, heads, head_dim] f32 in place; positions [tokens] i32.
  Status run(OpContext& ops, TensorView x, TensorView positions) const;
  TensorView frequencies() const { return frequencies_.view(); }
  bool interleaved() const { return interleaved_; }
  std::size_t workspace_bytes(int num_threads) const;
  std::size_t bytes() const { return frequencies_.bytes(); }

 private:
  Tensor frequencies_;
  bool interleaved_ = false;
};

}  // namespace mstar::nn
