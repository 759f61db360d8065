// Root-mean-square normalisation of rows.
#pragma once

#include "mstar/ops/op_context.h"

namespace mstar {

struct RmsNormArgs {
  TensorView x;       // [M, D] f32; rows may lie apart (heads of a projection are rows too)
  TensorView weight;  // [D] f32
  float epsilon = 1e-6f;
  float weight_offset = 0.0f;  // 1 for models that store weight - 1
  TensorView out;              // [M, D] f32; may be x
};

// out = x / sqrt(mean(x^2) + epsilon) * (weight + weight_offset). A row's bits do not depend on the other rows.
// Errors: internal (shapes). No workspace.
Status rms_norm(OpContext& context, const RmsNormArgs& args);

}  // namespace mstar
