// The gated delta rule: linear attention whose state is one matrix a head, corrected by each token and decayed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct DeltaGatesArgs {
  TensorView a;        // [tokens, heads] f32, on CUDA also f16 or bf16; tokens may lie apart
  TensorView b;        // same
  TensorView rate;     // [heads] f32
  TensorView dt_bias;  // [heads] f32
  TensorView decay;    // [tokens, heads] f32 contiguous
  TensorView beta;     // [tokens, heads] f32 contiguous
  // What was launched just before neither writes a or b nor reads or writes decay or beta, and what was launched before
  // that has ended when it begins: on CUDA the two may run at the same time.
  bool beside_previous = false;
};
// decay = exp(-rate * softplus(a + dt_bias)), beta = sigmoid(b), in doubles; on CUDA in f32. Errors: internal (shapes).
// No workspace.
Status delta_gates(OpContext& context, const DeltaGatesArgs& args);

struct DeltaRuleArgs {
  TensorView q;                             // [tokens, key_heads, key_dim] f32, on CUDA also bf16; tokens may lie apart
  TensorView k;                             // same
  TensorView v;                             // [tokens, heads, value_dim] of q's dtype; tokens may lie apart
  TensorView decay;                         // [tokens, heads] f32 contiguous
  TensorView beta;                          // [tokens, heads] f32 contiguous
  RaggedView rows;                          // tokens that belong to no row are left alone
  const std::int32_t* positions = nullptr;  // [tokens] in their sequences
  float scale = 1.0f;                       // of the normalised query
  float norm_epsilon = 1e-6f;
  // Which key head a head h reads: h % key_heads, or else h / (heads / key_heads).
  bool interleaved_heads = false;
  TensorView state;                          // [num_slots, heads, key_dim, value_dim] f32 or bf16; slots may lie apart
  const std::int32_t* slots = nullptr;       // [rows], no two rows with tokens share one
  const std::int32_t* read_slots = nullptr;  // [rows], where a row's state is before; null: where it will be
  KeptStates kept = {};                      // copies of states within rows
  TensorView out;                            // [tokens, heads, value_dim] of q's dtype; tokens may lie apart
};

// For each token of a row and each head, with q = scale * q / sqrt(|q|^2 + norm_epsilon) and k likewise without scale:
//   S = decay * S;  S = S + k (beta * (v - k^T S))^T;  out = q^T S
// where S [key_dim, value_dim] is the state, updated in place. A row whose first token is at position 0 starts from
// zeros, whatever the slot holds. bf16 states are rounded after every token, also within a step. What is kept after n
// tokens is what a row of those n would end with.
//
// Token after token in one order of sums (even and odd keys apart): a token's bits depend neither on the other rows, on
// threads, nor on how its sequence is cut into steps. heads is a multiple of key_heads, value_dim one of 16.
//
// On CUDA key_dim is at most 128 and one of 4, and every row of q, k, v and out begins on 4 elements' bytes. A row's
// bits do not depend on the other rows, but for one case: with bf16 tokens on 16 bytes, key_dim 128 and value_dim one
// of 32, a row of 32 tokens or more goes 64 tokens at a time (delta_chunk_cuda.cuh; products of 16 bits a factor, so
// that each output is within about 1e-4 of its size of the rule) where the step has more tokens than rows. The 64 are
// counted from the row's first token and again from the one where its state is kept. There a bf16 state is rounded
// once, at the row's end, and as it is kept. Errors: internal (shapes). Cost: 8 key_dim value_dim flop a token and
// head.
Status delta_rule(OpContext& context, const DeltaRuleArgs& args);
// Arena bytes that a call takes and gives back.
struct DeltaRuleWorkspace {
  Backend backend = Backend::cpu;
  std::int64_t tokens = 0, heads = 0, key_dim = 0;
  int num_threads = 1;
};
std::size_t delta_rule_workspace_bytes(const DeltaRuleWorkspace& call);

}  // namespace mstar
