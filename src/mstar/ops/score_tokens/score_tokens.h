// How likely each token of a text that is given was after what stands before it.
#pragma once

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct ScoreTokensArgs {
  TensorView logits;  // [n, vocabulary] f32 of tokens first_token .. first_token + n; rows may lie apart
  std::int64_t first_token = 0;
  TensorView ids;   // [tokens] i32
  RaggedView rows;  // as first_frames() has them
  int lead = 0;
  std::int32_t num_ids = 0;  // the softmax is over ids [0, num_ids); what else follows has probability 0
  TensorView out;            // [at least tokens - rows * (lead + 1)] f32, row by row
};

// For each token of logits that stands in its row behind `lead` others and is not the last: out = the probability of
// the token behind it. Others are left out. Errors: internal (shapes). No workspace. Cost: the logits are read twice.
Status score_tokens(OpContext& context, const ScoreTokensArgs& args);

}  // namespace mstar
