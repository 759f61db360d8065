// RMS normalisation with its weight.
#pragma once

#include <string>

#include "mstar/nn/linear.h"

namespace mstar::nn {

// Home: NAME.weight [dim].
class RmsNorm {
 public:
  static Result<RmsNorm> load(const LoadContext& context, const std::string& name, int dim, float epsilon,
                              float weight_offset = 0.0f);
  // x [M, dim] or [tokens, heads, dim]; see ops/rms_norm.
  Status run(OpContext& ops, TensorView x, TensorView out, TensorView gate = {}) const;
  // A null view where nothing was loaded.
  TensorView weight() const { return weight_.view(); }
  float epsilon() const { return epsilon_; }
  float weight_offset() const { return weight_offset_; }
  std::size_t bytes() const { return weight_.bytes(); }

 private:
  Tensor weight_;
  float epsilon_ = 1e-6f;
  float weight_offset_ = 0;
};

}  // namespace mstar::nn
