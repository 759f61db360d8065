// From logits to tokens: masks, penalties, truncation and the draw, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mstar/ops/op_context.h"

namespace mstar {

struct TokenRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;  // exclusive
};

struct TokenBias {
  std::int32_t id = 0;
  float value = 0;
};

// What one row wants. The order: repetition penalty, biases, masks, tail preference, temperature, min_p, top_k, top_p,
// draw.
struct SampleRow {
  std::span<const std::int32_t> suppress = {};       // ids set to -inf; ids outside the vocabulary are skipped
  std::span<const std::int32_t> more_suppress = {};  // same; so that shared and own lists need no copy
  std::span<const TokenRange> suppress_ranges = {};
  // Whisper's timestamp rule: when >= 0, all ids below it are masked if the ids from it on have together more
  // probability than the likeliest single id below it.
  std::int32_t tail_begin = -1;
  float repetition_penalty = 1.0f;          // over `seen`: positive logits are divided by it, negative multiplied
  std::span<const std::int32_t> seen = {};  // each id once
  std::span<const TokenBias> biases = {};   // added to logits; ids outside the vocabulary are skipped
  float temperature = 0.0f;                 // 0: the largest logit, ties to the lower id
  std::int32_t top_k = 0;                   // 0: all
  float top_p = 1.0f;                       // smallest set of likeliest tokens whose probability reaches top_p
  float min_p = 0.0f;                       // keeps tokens with at least min_p times the largest probability
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  // counts the row's draws; (seed, offset) fix the random number
};

struct SampleArgs {
  TensorView logits;  // [rows, vocabulary] f32; overwritten by penalties and masks; rows may lie apart
  std::span<const SampleRow> rows;
  TensorView tokens;     // [rows] i32 out
  TensorView log_probs;  // [rows] f32 out: log softmax of the masked logits at temperature 1; -inf if all are masked
};

// A row's token does not depend on the other rows. When everything is masked the token is the lowest id.
// Errors: internal (shapes). Workspace: sample_workspace_bytes, only for rows with temperature > 0.
Status sample(OpContext& context, const SampleArgs& args);
std::size_t sample_workspace_bytes(std::int64_t vocabulary, int num_threads);

struct TokenProbabilityArgs {
  TensorView logits;  // [rows, vocabulary] f32, read only
  std::span<const std::int32_t> ids;
  bool among_ids = false;  // softmax over `ids` alone instead of the vocabulary
  TensorView out;          // [rows, ids] f32 probabilities
};

// Probabilities of a few tokens (no-speech, languages). Errors: internal (shapes), bad_model (an id out of range).
Status token_probabilities(OpContext& context, const TokenProbabilityArgs& args);

struct LogProbArgs {
  TensorView logits;  // [vocabulary] f32, read only
  std::int32_t token = 0;
  TensorView out;  // [1 + n, 2] f32: (id, log-probability) of `token`, then of the n likeliest, ties to the lower id
};

// What a client is told of a draw: the log softmax of the logits as they are. Ids beyond 2^24 don't fit an f32. On the
// CPU only. Errors: internal (shapes, a token outside the vocabulary). Cost: one pass, and a partial sort.
Status log_probabilities(OpContext& context, const LogProbArgs& args);

// Philox 4x32-10: four random words for (key, counter).
struct PhiloxWords {
  std::uint32_t word[4];
};
PhiloxWords philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high = 0);

}  // namespace mstar
