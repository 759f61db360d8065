// Rotary position embedding.
#pragma once

#include "mstar/ops/op_context.h"

namespace mstar {

struct RopeArgs {
  // [tokens, heads, head_dim] f32, on CUDA also f16 or bf16, rotated in place; tokens and heads may lie apart. Queries
  // and keys that lie side by side in a fused projection are one view of heads + kv_heads heads.
  TensorView x;
  TensorView positions;            // [tokens] i32; with pair_axes [axes, tokens], tokens side by side
  TensorView inverse_frequencies;  // [rotary / 2] f32; dimensions from `rotary` on are left alone
  bool interleaved = false;        // pairs are (2i, 2i + 1) instead of (i, i + rotary / 2)
  float magnitude = 1.0f;          // multiplies cosines and sines (YaRN's attention factor)
  // [rotary / 2] i32: the axis (time, height, width) whose position turns a pair, as multimodal models have it
  // (M-RoPE). Below the number of axes. A null pointer: there is one axis.
  TensorView pair_axes = {};
};

// Whether the views are what RopeArgs says, for so many tokens and pairs.
bool are_rotary_positions(const TensorView& positions, const TensorView& pair_axes, std::int64_t tokens,
                          std::int64_t pairs);

// Angles are positions * inverse_frequencies in f32, as transformers computes them; CUDA rounds once when it stores. A
// token's bits do not depend on the others. Errors: internal (shapes). Workspace: rope_workspace_bytes; none on CUDA.
Status rope(OpContext& context, const RopeArgs& args);
std::size_t rope_workspace_bytes(std::int64_t rotary, int num_threads);

}  // namespace mstar
