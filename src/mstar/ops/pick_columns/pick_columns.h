// Columns of rows, gathered from where they lie or put back there.
#pragma once

#include <span>

#include "mstar/base/shares.h"
#include "mstar/ops/op_context.h"

namespace mstar {

inline constexpr std::size_t kMostPickedRanges = 64;

struct PickColumnsArgs {
  TensorView rows;                    // [M, N] f32, f16 or bf16; rows may lie apart
  std::span<const AxisRange> ranges;  // of its columns, at most kMostPickedRanges
  TensorView packed;                  // [M, columns of all ranges] of the same dtype; rows may lie apart; no overlap
  bool puts_back = false;             // from packed into rows
};
// packed[m] = the ranges of rows[m], one behind the other; or, puts_back, the other way. Bits as they are.
// Errors: internal (shapes). No workspace. Cost: M x columns read and written once.
Status pick_columns(OpContext& context, const PickColumnsArgs& args);

}  // namespace mstar
