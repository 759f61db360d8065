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
// along a row; each of its warps has 16 columns of the state in registers, transposed, so that what one product gives
// is an operand of the next where it lies. q, k and v are bf16 and enter products as they are (their norms are factored
// out); all else is f32, split into two bf16 where it enters a product.
#pragma once

#include "mstar/ops/cuda_tiles.cuh"
#include "mstar/ops/delta_rule/delta_rule_cuda.cuh"

namespace mstar::cuda {

inline constexpr int kChunk = 64;                                                        // tokens
inline constexpr int kTileRows = kChunk / 16, kTiles = kTileRows * (kTileRows + 1) / 2;  // on and below the diagonal
inline constexpr int kColumns = 16;           // of the state that a warp of `scan` owns
inline constexpr int kLeastChunkTokens = 32;  // a row of fewer goes token after token

// Per token: beta; e^{L_t} beta_t / |k_t|; e^{L_t} scale / |q_t|; e^{L_C - L_t} / |k_t|; e^{L_C}.
enum ChunkFactor { kBeta, kKnown, kSeen, kKept, kLasting, kNumFactors };
enum ChunkMatrix { kSolveHigh, kSolveLow, kScoreHigh, kScoreLow, kNumMatrices };

// What `prepare` leaves for `scan` of a chunk and head: T and the scores in tiles of 16 x 16, row after row of them, as
// a lane holds them as two B. Rows of tiles without tokens are neither written nor read.
struct ChunkPart {
  float factors[kNumFactors][kChunk];
  uint4 tiles[kTiles][kNumMatrices][kWarp];
};
__host__ __device__ constexpr int part_bytes(int tokens) {
  const int rows = (tokens + 15) / 16;
  return static_cast<int>(sizeof(ChunkPart::factors)) +
         rows * (rows + 1) / 2 * static_cast<int>(sizeof(ChunkPart::tiles[0]));
}
// Parts of one head lie in the order of their tokens, each where its first token's place is. A row has at most two
// short chunks, which need the places of a few tokens more.
inline constexpr int kPlaceBytes = 512, kSparePlaces = 6;
constexpr bool parts_fit() {
  for (int tokens = 1; tokens <= kChunk; ++tokens)
    if (part_bytes(tokens) > (tokens + (tokens < kChunk ? kSparePlaces : 0)) * kPlaceBytes) return false;
  return true;
}
static_assert(parts_fit());
constexpr std::int64_t num_places(std::int64_t tokens) {
  return tokens + 2 * kSparePlaces * (tokens / kLeastChunkTokens);
}

struct ChunkPlan {
  unsigned char* places = nullptr;  // [heads][places][kPlaceBytes]
  std::int64_t num_places = 0;      // of a head
  // Of the chunk that begins with token `first` of the row that begins with token `begin`; `kept`: the row's tokens
  // after which its state is kept.
  __device__ ChunkPart& part(int head, int begin, int first, int kept) const {
    const std::int64_t place =
        begin + first + 2 * kSparePlaces * (begin / kLeastChunkTokens) + (kept > 0 && first >= kept ? kSparePlaces : 0);
    return *reinterpret_cast<ChunkPart*>(places + (head * num_places + place) * kPlaceBytes);
  }
};

template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "cudaFuncSetAttribute");
}
inline int num_multiprocessors(const OpContext& context) {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context.device.id().index),
             "cudaDeviceGetAttribute");
  return count;
}

// Rows of at least kLeastChunkTokens. key_dim is kMostKeyDim; State is f32 or bf16.
template <class State>
void launch_prepare(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int num_tokens);
template <class State>
void launch_scan(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int num_tokens);

}  // namespace mstar::cuda
