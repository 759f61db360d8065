// Rotary position embedding.
#pragma once

#include "mstar/ops/op_context.h"

namespace mstar {

struct RopeArgs {
  // [tokens, heads, head_dim] f32, on CUDA also f16 or bf16, rotated in place; tokens and heads may lie apart. Queries
  // and keys that lie side by side in a fused projection are one view of heads + kv_heads heads.
  TensorView x;
  TensorView positions;            // [tokens] i32
  TensorView inverse_frequencies;  // [rotary / 2] f32; dimensions from `rotary` on are left alone
  bool interleaved = false;        // pairs are (2i, 2i + 1) instead of (i, i + rotary / 2)
  float magnitude = 1.0f;          // multiplies cosines and sines (YaRN's attention factor)
};

// Angles are positions * inverse_frequencies in f32, as transformers computes them; CUDA rounds once when it stores. A
// token's bits do not depend on the others. Errors: internal (shapes). Workspace: rope_workspace_bytes; none on CUDA.
Status rope(OpContext& context, const RopeArgs& args);
std::size_t rope_workspace_bytes(std::int64_t rotary, int num_threads);

}  // namespace mstar
