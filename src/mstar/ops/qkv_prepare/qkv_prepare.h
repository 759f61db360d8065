// What lies between the projection of queries, keys and values and attention over pages: norms of heads, rotations, and
// the new tokens' places in the pages.
#pragma once

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct QkvPrepareArgs {
  TensorView q;                    // [tokens, heads, head_dim] f32, on CUDA also bf16; tokens and heads may lie apart
  TensorView k;                    // [tokens, kv_heads, head_dim] of q's dtype; tokens may lie apart
  TensorView v;                    // same
  TensorView q_weight, k_weight;   // [head_dim] f32, of each head's norm; null pointers: none
  float epsilon = 1e-6f;           // as in ops/rms_norm
  float weight_offset = 0.0f;      // same
  TensorView positions;            // as in ops/rope
  TensorView inverse_frequencies;  // [rotary / 2] f32, same
  bool interleaved = false;        // same
  RaggedView rows;
  PagedKvView kv;  // as in ops/kv_append
  TensorView
      q_out;  // of q's shape and dtype; tokens and heads may lie apart; may be q, and is where there are no norms
  TensorView pair_axes = {};  // as in ops/rope
};

// q_out = rope(norm(q)); rope(norm(k)) and v go into the pages. `k` is worked on in place or left alone: its values are
// not for later. On the CPU this is rms_norm, rope and kv_append, bit for bit; on CUDA one kernel that rounds once, for
// heads of at most 256. A token's bits do not depend on the others. Errors: internal (shapes, or a position outside the
// page table; on CUDA such a token is not written). Workspace: rope_workspace_bytes; none on CUDA.
Status qkv_prepare(OpContext& context, const QkvPrepareArgs& args);

}  // namespace mstar
