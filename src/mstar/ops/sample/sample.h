// From logits to tokens: masks, penalties, truncation and the draw, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mstar/ops/op_context.h"
#include "mstar/ops/sample/philox.h"
#include "mstar/ops/sample/sample_parameters.h"

namespace mstar {

struct SampleArgs {
  TensorView logits;  // [rows, vocabulary] f32; overwritten by penalties and masks; rows may lie apart
  std::span<const SampleRow> rows;
  TensorView tokens;     // [rows] i32 out
  TensorView log_probs;  // [rows] f32 out: log softmax of the masked logits at temperature 1; -inf if all are masked
  SampleParametersView parameters = {};  // on CUDA, in the place of `rows`: memory that a captured step reads anew
};

// A row's token does not depend on the other rows. When everything is masked the token is the lowest id.
// Errors: internal (shapes; parameters on the CPU). Workspace: sample_workspace_bytes.
//
// On CUDA rows that want more than the largest logit come by `parameters`, and all can be captured. The token is the
// CPU's, from the same random number, unless that lies within about 1e-5 of where the CPU would have taken the next
// token, or of where top_p ends; min_p cuts at the CPU's logit exactly. A row's ids are read once by all, and once more
// by rows that draw; a draw from more than 4096 tokens of nearly one weight takes some 0.3 ms. Vocabulary at most
// 290000.
Status sample(OpContext& context, const SampleArgs& args);
std::size_t sample_workspace_bytes(std::int64_t vocabulary, int num_threads);

struct TokenProbabilityArgs {
  TensorView logits;  // [rows, vocabulary] f32, read only
  std::span<const std::int32_t> ids;
  bool among_ids = false;  // softmax over `ids` alone instead of the vocabulary
  TensorView out;          // [rows, ids] f32 probabilities
};

// Probabilities of a few tokens (no-speech, languages); on CUDA at most 128. Errors: internal (shapes), bad_model (an
// id out of range).
Status token_probabilities(OpContext& context, const TokenProbabilityArgs& args);

struct LogProbArgs {
  TensorView logits;  // [vocabulary] f32, read only
  std::int32_t token = 0;
  TensorView out;  // [1 + n, 2] f32: (id, log-probability) of `token`, then of the n likeliest, ties to the lower id
  const std::int32_t* drawn = nullptr;  // on CUDA: where the token is, in the place of `token`
};

// What a client is told of a draw: the log softmax of the logits as they are. Ids beyond 2^24 don't fit an f32. Errors:
// internal (shapes, a token outside the vocabulary). Cost: one pass, and a partial sort; on CUDA some 2 us for each of
// n.
Status log_probabilities(OpContext& context, const LogProbArgs& args);

}  // namespace mstar
