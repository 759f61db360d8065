#include "mstar/ops/delta_rule/delta_chunk_cuda.cuh"

namespace mstar::cuda {
namespace {

constexpr int kKeys = kMostKeyDim;
constexpr int kHalf = kChunk / 2;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRowsAWarp = kChunk / kWarps;
constexpr int kBlocksAtOnce = 4;  // of a multiprocessor

struct PrepareShared {
  Bf16 k[kChunk][kKeys + 8], q[kChunk][kKeys + 8];
  float matrix[kChunk][kChunk + 8];  // A, then its inverse in place; products in the corner above
  float log_decay[kChunk], beta[kChunk], k_by[kChunk], q_by[kChunk];
};

// Keys and queries of the chunk as they are, and what normalises them.
template <class State>
__device__ void read_chunk(const DeltaCall<Bf16, State>& c, const Piece& piece, int head, PrepareShared& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t token = piece.begin + piece.first;
  const std::int64_t at = c.key_head_of(head) * kKeys + 4 * lane;
  uint2 k[kRowsAWarp], q[kRowsAWarp];
#pragma unroll
  for (int i = 0; i < kRowsAWarp; ++i) {
    const int t = warp * kRowsAWarp + i;
    k[i] = q[i] = make_uint2(0, 0);
    if (t < piece.count) {
      k[i] = *reinterpret_cast<const uint2*>(c.k + (token + t) * c.k_stride + at);
      q[i] = *reinterpret_cast<const uint2*>(c.q + (token + t) * c.q_stride + at);
    }
  }
  const auto squares = [](uint2 words) {
    Bf16 values[4];
    memcpy(values, &words, sizeof(words));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = __fmaf_rn(widen(values[i]), widen(values[i]), sum);
    return warp_sum(sum);
  };
#pragma unroll
  for (int i = 0; i < kRowsAWarp; ++i) {
    const int t = warp * kRowsAWarp + i;
    *reinterpret_cast<uint2*>(&s.k[t][4 * lane]) = k[i];
    *reinterpret_cast<uint2*>(&s.q[t][4 * lane]) = q[i];
    const float kk = squares(k[i]), qq = squares(q[i]);
    if (lane == 0) {
      s.k_by[t] = 1.0f / sqrtf(kk + c.norm_epsilon);
      s.q_by[t] = c.scale / sqrtf(qq + c.norm_epsilon);
    }
  }
}

struct Gates {
  float decay[kChunk / kWarp], beta[kChunk / kWarp];  // of tokens lane, lane + 32; past the chunk 1 and 0
};
template <class State>
__device__ Gates read_gates(const DeltaCall<Bf16, State>& c, const Piece& piece, int head) {
  Gates gates;
#pragma unroll
  for (int part = 0; part < kChunk / kWarp; ++part) {
    const int t = part * kWarp + threadIdx.x % kWarp;
    const std::int64_t at = static_cast<std::int64_t>(piece.begin + piece.first + t) * c.heads + head;
    gates.decay[part] = t < piece.count ? c.decay[at] : 1.0f;
    gates.beta[part] = t < piece.count ? c.beta[at] : 0.0f;
  }
  return gates;
}
// Sums of log decay up to each token, and beta. By one warp. A decay of less than e^-69 is as good as none.
__device__ void write_gates(const Gates& gates, PrepareShared& s) {
  const int lane = threadIdx.x % kWarp;
  float before = 0;
#pragma unroll
  for (int part = 0; part < kChunk / kWarp; ++part) {
    const int t = part * kWarp + lane;
    float sum = logf(fmaxf(gates.decay[part], 1e-30f));
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const float other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    s.log_decay[t] = before + sum;
    s.beta[t] = gates.beta[part];
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
}

// A into shared memory (warps 0 to 3, 16 tokens each), the scores into the plan (warps 4 to 7).
__device__ void multiply_keys(const Piece& piece, ChunkPart& part, PrepareShared& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, block = warp % 4;
  const bool scores = warp >= 4;
  const TileLane a_at = rows_first(lane), b_at = columns_first(lane);
  float sums[8][4] = {};
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const int row = 16 * block + a_at.row, column = 16 * step + a_at.column;
    const Tile a = load_tile(scores ? &s.q[row][column] : &s.k[row][column]);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair > block) continue;  // above the diagonal
      const Tile b = load_tile(&s.k[16 * pair + b_at.row][16 * step + b_at.column]);
      multiply(a, b, 0, sums[2 * pair]);
      multiply(a, b, 1, sums[2 * pair + 1]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = 16 * block + lane / 4 + 8 * half;
    const float by = scores ? s.q_by[t] : s.beta[t] * s.k_by[t];
    const int last = scores ? t : t - 1;
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      if (tile / 2 > block) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int other = 8 * tile + 2 * (lane % 4) + i;
        const float decay = by * s.k_by[other] * expf(s.log_decay[t] - s.log_decay[other]);
        sums[tile][2 * half + i] = other <= last ? decay * sums[tile][2 * half + i] : 0.0f;
      }
      if (!scores)
        *reinterpret_cast<float2*>(&s.matrix[t][8 * tile + 2 * (lane % 4)]) =
            make_float2(sums[tile][2 * half], sums[tile][2 * half + 1]);
    }
  }
  if (!scores || 16 * block >= piece.count) return;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    if (pair > block) continue;
    Tile high, low;
    split_as_b(sums[2 * pair], sums[2 * pair + 1], high, low);
    part.tiles[block * (block + 1) / 2 + pair][kScoreHigh][lane] = words_of(high);
    part.tiles[block * (block + 1) / 2 + pair][kScoreLow][lane] = words_of(low);
  }
}

// The inverse of I + A in place, by halves: each half of the diagonal by substitution, a column a lane; then the corner
// below is -T2 A T1.
__device__ void invert(PrepareShared& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (warp < 2) {
    const int first = warp * kHalf;
    float column[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      float sums[4] = {i == lane ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 row = *reinterpret_cast<const float4*>(&s.matrix[first + i][first + j]);
        sums[0] = __fmaf_rn(-row.x, column[j], sums[0]);
        if (j + 1 < i) sums[1] = __fmaf_rn(-row.y, column[j + 1], sums[1]);
        if (j + 2 < i) sums[2] = __fmaf_rn(-row.z, column[j + 2], sums[2]);
        if (j + 3 < i) sums[3] = __fmaf_rn(-row.w, column[j + 3], sums[3]);
      }
      column[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHalf; ++i) s.matrix[first + i][first + lane] = column[i];
  }
  __syncthreads();
  const int row = threadIdx.x / 8, at = threadIdx.x % 8 * 4;
  float sums[4] = {};
#pragma unroll 8
  for (int j = 0; j < kHalf; ++j) {
    const float by = s.matrix[kHalf + row][j];
    const float4 values = *reinterpret_cast<const float4*>(&s.matrix[j][at]);
    sums[0] = __fmaf_rn(by, values.x, sums[0]);
    sums[1] = __fmaf_rn(by, values.y, sums[1]);
    sums[2] = __fmaf_rn(by, values.z, sums[2]);
    sums[3] = __fmaf_rn(by, values.w, sums[3]);
  }
  *reinterpret_cast<float4*>(&s.matrix[row][kHalf + at]) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  __syncthreads();
  sums[0] = sums[1] = sums[2] = sums[3] = 0;
#pragma unroll 8
  for (int j = 0; j < kHalf; ++j) {
    const float by = -s.matrix[kHalf + row][kHalf + j];
    const float4 values = *reinterpret_cast<const float4*>(&s.matrix[j][kHalf + at]);
    sums[0] = __fmaf_rn(by, values.x, sums[0]);
    sums[1] = __fmaf_rn(by, values.y, sums[1]);
    sums[2] = __fmaf_rn(by, values.z, sums[2]);
    sums[3] = __fmaf_rn(by, values.w, sums[3]);
  }
  // Nobody reads the corner below any more.
  *reinterpret_cast<float4*>(&s.matrix[kHalf + row][at]) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  __syncthreads();
}

__device__ void write_inverse(const Piece& piece, const PrepareShared& s, ChunkPart& part) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int tile = warp; tile < kTiles; tile += kWarps) {
    const int block = tile < 1 ? 0 : tile < 3 ? 1 : tile < 6 ? 2 : 3, other = tile - block * (block + 1) / 2;
    if (16 * block >= piece.count) continue;
    float sums[2][4];  // as a product leaves them
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * block + lane / 4 + 8 * half, column = 16 * other + 8 * n + 2 * (lane % 4);
        const float2 pair = *reinterpret_cast<const float2*>(&s.matrix[row][column]);
        // Above the diagonal of its halves lies what products left.
        sums[n][2 * half] = column <= row ? pair.x : 0.0f;
        sums[n][2 * half + 1] = column + 1 <= row ? pair.y : 0.0f;
      }
    Tile high, low;
    split_as_b(sums[0], sums[1], high, low);
    part.tiles[tile][kSolveHigh][lane] = words_of(high);
    part.tiles[tile][kSolveLow][lane] = words_of(low);
  }
}

__device__ void write_factors(const PrepareShared& s, ChunkPart& part) {
  const int token = threadIdx.x;
  if (token >= kChunk) return;
  const float sum = s.log_decay[token], last = s.log_decay[kChunk - 1], through = expf(sum);
  part.factors[kBeta][token] = s.beta[token];
  part.factors[kKnown][token] = through * s.beta[token] * s.k_by[token];
  part.factors[kSeen][token] = through * s.q_by[token];
  part.factors[kKept][token] = expf(last - sum) * s.k_by[token];
  part.factors[kLasting][token] = expf(last);
}

// One chunk of one head at a time.
template <class State>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) prepare(DeltaCall<Bf16, State> c, ChunkPlan plan) {
  await_inputs();
  extern __shared__ __align__(128) unsigned char memory[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
  for (int item = blockIdx.x;; item += gridDim.x) {
    const int head = item % c.heads;
    const Piece piece = piece_of(c.offsets, c.num_rows, kChunk, kLeastChunkTokens, item / c.heads, c.kept.tokens);
    if (piece.row < 0) return;
    ChunkPart& part = plan.part(head, piece.begin, piece.first, c.kept_tokens_of(piece.row));
    const bool has_gates = threadIdx.x < kWarp;
    Gates gates;
    if (has_gates) gates = read_gates(c, piece, head);
    read_chunk(c, piece, head, s);
    if (has_gates) write_gates(gates, s);
    __syncthreads();
    multiply_keys(piece, part, s);
    __syncthreads();
    write_factors(s, part);
    invert(s);
    write_inverse(piece, s, part);
    __syncthreads();
  }
}

}  // namespace

template <class State>
void launch_prepare(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int num_tokens) {
  check_cuda(cudaFuncSetAttribute(prepare<State>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(PrepareShared)),
             "cudaFuncSetAttribute");
  const int rows = std::min(call.num_rows, num_tokens / kLeastChunkTokens);  // at most, that go by chunks
  const int pieces = (call.kept.tokens ? 2 : 1) * rows + num_tokens / kChunk;
  const int grid = std::min(pieces * call.heads, kBlocksAtOnce * num_multiprocessors(context));
  launch_kernel(context, prepare<State>, grid, kThreads, sizeof(PrepareShared), call, plan);
}
template void launch_prepare(OpContext&, const DeltaCall<Bf16, float>&, const ChunkPlan&, int);
template void launch_prepare(OpContext&, const DeltaCall<Bf16, Bf16>&, const ChunkPlan&, int);

}  // namespace mstar::cuda
