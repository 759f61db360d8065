// What the ranks of a group make together. Every rank makes the same calls with the same shapes; all get the same bits.
#pragma once

#include "mstar/ops/op_context.h"

namespace mstar {

// x becomes the sum over the ranks (Communicator::all_reduce). x is contiguous: f32, bf16 or f16. Alone: nothing
// happens. Errors: internal (shapes), unavailable (the group has ended). No workspace.
Status all_reduce(OpContext& context, TensorView x);

struct GatherColumnsArgs {
  TensorView parts;  // [ranks, M, W] f32, contiguous; the own columns are in parts[rank], the others are written
  TensorView out;    // [M, N] f32 with N <= ranks * W; rows may lie apart; must not overlap parts
};
// out[m][rank * W + c] = parts[rank][m][c]: columns that the ranks have cut evenly, the last ones perhaps shorter.
// Errors as above. No workspace. Cost: ranks x M x W numbers sent to each rank, M x N copied once more.
Status gather_columns(OpContext& context, const GatherColumnsArgs& args);

// ---- among the ranks that have the other rows of a step (OpContext::sequence)

// Part r of `from` [ranks, ...] goes to rank r; part r of `to`, which is like it, comes from rank r. Both contiguous,
// no overlap. Errors: internal (shapes; without such ranks), unavailable. No workspace.
Status exchange_parts(OpContext& context, TensorView from, TensorView to);
// parts [ranks, ...], contiguous: the own one is there, the others are written. Errors as above.
Status gather_parts(OpContext& context, TensorView parts);

}  // namespace mstar
