// The first half of a gated feed-forward: silu(gate(x)) * up(x).
#pragma once

#include "mstar/ops/linear/linear.h"

namespace mstar {

struct GatedLinearArgs {
  TensorView x;                          // as linear's
  const LinearWeight* weight = nullptr;  // [2 F, K]: the rows of gate, then those of up
  TensorView out;                        // [M, F] f32, on CUDA also bf16; rows may lie apart; must not overlap x
  RowSquares squares = {};               // as linear's
};

// out = silu(x gate^T) * (x up^T): on the CPU the very bits of linear() and then silu_mul(). On CUDA few rows of the
// weight's 16-bit dtype round only what is stored (silu of what becomes 16 bits is approximate, to about 1e-6 of its
// size); else both products are rounded to out's dtype before they meet.
// Thread, cost, errors: linear's.
Status gated_linear(OpContext& context, const GatedLinearArgs& args);
// Arena bytes that a call takes and gives back.
std::size_t gated_linear_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads);

}  // namespace mstar
