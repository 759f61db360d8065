// The last token of each row of a ragged batch.
#pragma once

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct LastRowsArgs {
  TensorView x;  // [tokens, D] f32; tokens may lie apart
  RaggedView rows;
  TensorView out;  // [rows.num_rows, D] f32; rows may lie apart; must not overlap x
};

// out[r] = x[offsets[r + 1] - 1]; zeros for a row without tokens. Errors: internal (shapes). No workspace. Cost: reads
// and writes rows x D.
Status last_rows(OpContext& context, const LastRowsArgs& args);

}  // namespace mstar
