// The delta rule on chunks of a row: products of small matrices in place of one step a token.
//
// With L_t the sum of log decay up to t within a chunk of C tokens, normalised q and k, and the state S at its start,
// the change u_t that token t makes (S' = decay S + k u^T) solves
//   u_t = beta_t (v_t - e^{L_t} S^T k_t - sum_{s<t} e^{L_t - L_s} (k_t k_s) u_s),
// so U = T R with R_t = beta_t (v_t - e^{L_t} S^T k_t) and T = (I + A)^-1, A_ts = beta_t e^{L_t - L_s} (k_t k_s), s <
// t.
//   out_t = e^{L_t} S^T q_t + sum_{s<=t} e^{L_t - L_s} (q_t k_s) u_s;  S_C = e^{L_C} S + sum_s e^{L_C - L_s} k_s u_s^T.
// A row's chunks begin at its first token, and anew at the token after which its state is kept.
// T and the scores before u_s depend on no state: `prepare` works them out for all chunks at once. `scan` then walks
// along a row with a slice of the state in registers. q, k and v are bf16 and enter products as they are (their norms
// are factored out); all else is f32, split into two bf16 where it enters a product.
#pragma once

#include "mstar/ops/cuda_tiles.cuh"
#include "mstar/ops/delta_rule/delta_rule_cuda.cuh"

namespace mstar::cuda {

inline constexpr int kChunk = 64;  // tokens
inline constexpr int kSlice = 32;  // columns of the state that a block of `scan` owns
inline constexpr int kChunkThreads = 256;
inline constexpr int kLeastChunkTokens = 32;  // a row of fewer goes token after token

// Per token and head: beta; e^{L_t} beta_t / |k_t|; e^{L_t} scale / |q_t|; e^{L_C - L_t} / |k_t|; e^{L_C}.
enum ChunkFactor { kBeta, kKnown, kSeen, kKept, kLasting, kNumFactors };

// What `prepare` leaves for `scan`.
struct ChunkPlan {
  Bf16 *solve_high = nullptr, *solve_low = nullptr;  // T [heads][tokens][kChunk]
  Bf16 *score_high = nullptr, *score_low = nullptr;  // same
  float* factors = nullptr;                          // [kNumFactors][heads][tokens]
  int tokens = 0;
};

// Rows of at least kLeastChunkTokens. key_dim is kMostKeyDim; State is f32 or bf16.
template <class State>
void launch_prepare(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int num_tokens);
template <class State>
void launch_scan(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan);

}  // namespace mstar::cuda
