// What a product needs to read rows that lack a layer norm (passed_norm.h).
#pragma once

#include "mstar/ops/linear/linear.h"

namespace mstar {

struct FoldNormArgs {
  const LinearWeight* weight = nullptr;  // [N, K]; on CUDA bf16 or f16
  TensorView gains, shifts;              // [K] f32: the norm's weight and bias
  TensorView bias;                       // [N] f32: the product's, or a null pointer
  TensorView weighted_gains;             // [N] f32: W gains
  TensorView folded_bias;                // [N] f32: W shifts + bias
};

// Sums of the weight's numbers as the product has them: in doubles on the CPU, in f32 in one fixed order on CUDA.
// Thread: whoever loads weights. Cost: reads the weight once. Errors: internal (shapes; a weight of another dtype).
Status fold_norm(OpContext& context, const FoldNormArgs& args);

}  // namespace mstar
