// Layer normalisation of rows.
#pragma once

#include "mstar/ops/op_context.h"

namespace mstar {

struct LayerNormArgs {
  TensorView x;       // [M, D] f32; rows may lie apart
  TensorView weight;  // [D] f32
  TensorView bias;    // [D] f32, or a null pointer
  float epsilon = 1e-5f;
  TensorView out;  // [M, D] f32, on CUDA also bf16; rows may lie apart; may be x when it is f32
};

// out = (x - mean) / sqrt(variance + epsilon) * weight + bias, the variance in two passes over the row.
// A row's bits do not depend on the other rows. Errors: internal (shapes). No workspace.
Status layer_norm(OpContext& context, const LayerNormArgs& args);

}  // namespace mstar
