// Root-mean-square normalisation of rows.
#pragma once

#include "mstar/ops/op_context.h"

namespace mstar {

struct RmsNormArgs {
  TensorView x;       // [M, D], or [tokens, heads, D], each head by itself; f32; rows and heads may lie apart
  TensorView weight;  // [D] f32
  float epsilon = 1e-6f;
  float weight_offset = 0.0f;  // 1 for models that store weight - 1
  TensorView out;              // of x's shape, f32; may be x where the dtypes are the same
  TensorView gate = {};        // of x's shape and dtype, or a null pointer; with one out has x's dtype
};

// out = x / sqrt(mean(x^2) + epsilon) * (weight + weight_offset), times silu(gate) where there is one. A row's bits do
// not depend on the other rows. On CUDA x and out may also be f16 or bf16, each for itself; sums are f32 and the result
// is rounded once (silu of a gate of 16 bits is approximate, to about 1e-6 of its size). Errors: internal (shapes; on
// CUDA D > 16384). No workspace.
Status rms_norm(OpContext& context, const RmsNormArgs& args);

}  // namespace mstar
