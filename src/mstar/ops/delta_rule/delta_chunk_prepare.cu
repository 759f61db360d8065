#include "mstar/ops/cuda_approximate.cuh"
#include "mstar/ops/delta_rule/delta_chunk_cuda.cuh"

namespace mstar::cuda {
namespace {

constexpr int kKeys = kMostKeyDim;
constexpr int kHalf = kChunk / 2;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kBlocksAtOnce = 4;  // of a multiprocessor

// Each number as two of bf16.
struct Inverses {
  Bf16 halves[2][2][kHalf][kHalf + 8];  // of the halves of the diagonal: [half][part][column][row]
  Bf16 product[2][kHalf][kHalf + 8];    // of A's corner and the first of them: [part][row][column]
};
struct PrepareShared {
  Bf16 k[kChunk][kKeys + 8];
  union {
    Bf16 q[kChunk][kKeys + 8];  // until both products are done
    Inverses inverses;          // from then on
  };
  float halves[2][kHalf][kHalf + 4];  // A, as far as it lies in the halves of the diagonal
  // log_decay: sums of logarithms to the base 2 up to each token
  float log_decay[kChunk], beta[kChunk], k_by[kChunk], q_by[kChunk];
};

__device__ inline float squares_of(const uint4& words) {
  float sum = 0;
#pragma unroll
  for (const std::uint32_t word : {words.x, words.y, words.z, words.w}) {
    const float2 pair = unpack(word);
    sum = __fmaf_rn(pair.y, pair.y, __fmaf_rn(pair.x, pair.x, sum));
  }
  return sum;
}

// Keys and queries of the chunk as they are, and what normalises them: eight tokens a warp, two at a time.
template <class State>
__device__ void read_chunk(const DeltaCall<Bf16, State>& c, const Piece& piece, int head, PrepareShared& s) {
  constexpr int kPairs = kChunk / kWarps / 2;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, which = lane / 16, column = lane % 16 * 8;
  const std::int64_t token = piece.begin + piece.first, at = c.key_head_of(head) * kKeys + column;
  uint4 k[kPairs], q[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int t = 2 * (warp * kPairs + i) + which;
    k[i] = q[i] = make_uint4(0, 0, 0, 0);
    if (t < piece.count) {
      k[i] = *reinterpret_cast<const uint4*>(c.k + (token + t) * c.k_stride + at);
      q[i] = *reinterpret_cast<const uint4*>(c.q + (token + t) * c.q_stride + at);
    }
  }
  float sums[2 * kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int t = 2 * (warp * kPairs + i) + which;
    *reinterpret_cast<uint4*>(&s.k[t][column]) = k[i];
    *reinterpret_cast<uint4*>(&s.q[t][column]) = q[i];
    sums[i] = squares_of(k[i]);
    sums[kPairs + i] = squares_of(q[i]);
  }
  // Sums over 16 lanes of eight numbers at once: each step halves the numbers that a lane still sums.
  static_assert(kPairs == 4);
#pragma unroll
  for (int left = kPairs; left > 0; left /= 2) {
    const bool upper = lane & (2 * left);
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, upper ? sums[i] : sums[i + left], 2 * left);
      sums[i] = (upper ? sums[i + left] : sums[i]) + other;
    }
  }
  const float sum = sums[0] + __shfl_xor_sync(kAllLanes, sums[0], 1);
  const int number = lane % 16 / 2, t = 2 * (warp * kPairs + number % kPairs) + which;
  if (lane % 2 == 0) {
    const float by = rsqrtf(sum + c.norm_epsilon);
    if (number < kPairs) {
      s.k_by[t] = by;
    } else {
      s.q_by[t] = c.scale * by;
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
    float sum = log2f(fmaxf(gates.decay[part], 1e-30f));
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

// A corner of A as the left side of a product.
struct Corner {
  Tile high[2], low[2];
};
// A and the scores, 16 tokens a warp. Warps 0 to 3: A's halves into shared memory, its corner to warps 2 and 3. Warps 4
// to 7: the scores into the plan.
__device__ void multiply_keys(const Piece& piece, ChunkPart& part, PrepareShared& s, Corner& corner) {
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
    const float by = scores ? s.q_by[t] : s.beta[t] * s.k_by[t], log_decay = s.log_decay[t];
    const int last = scores ? t : t - 1;
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      if (tile / 2 > block) continue;
      const int first = 8 * tile + 2 * (lane % 4);
      const float2 others = *reinterpret_cast<const float2*>(&s.log_decay[first]);
      const float2 other_by = *reinterpret_cast<const float2*>(&s.k_by[first]);
      float(&own)[4] = sums[tile];
      const float x = by * other_by.x * power_of_two(log_decay - others.x) * own[2 * half];
      const float y = by * other_by.y * power_of_two(log_decay - others.y) * own[2 * half + 1];
      own[2 * half] = first <= last ? x : 0.0f;
      own[2 * half + 1] = first + 1 <= last ? y : 0.0f;
    }
  }
  if (scores) {
    if (16 * block >= piece.count) return;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair > block) continue;
      Tile high, low;
      split_as_b(sums[2 * pair], sums[2 * pair + 1], high, low);
      part.tiles[block * (block + 1) / 2 + pair][kScoreHigh][lane] = words_of(high);
      part.tiles[block * (block + 1) / 2 + pair][kScoreLow][lane] = words_of(low);
    }
    return;
  }
  const auto write_half = [&](int which, int pair, int tile) {  // `tile` of the sums, of its half the pair-th two
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(
            &s.halves[which][16 * (block % 2) + lane / 4 + 8 * half][16 * pair + 8 * n + 2 * (lane % 4)]) =
            make_float2(sums[tile + n][2 * half], sums[tile + n][2 * half + 1]);
  };
  if (block < 2) {
    write_half(0, 0, 0);
    if (block == 1) write_half(0, 1, 2);
  } else {
    write_half(1, 0, 4);
    if (block == 3) write_half(1, 1, 6);
#pragma unroll
    for (int step = 0; step < 2; ++step)
      split_as_a(sums[2 * step], sums[2 * step + 1], corner.high[step], corner.low[step]);
  }
}

// The inverse of a half of I + A, by substitution: a column a lane. By one warp.
__device__ void invert_half(int half, PrepareShared& s) {
  const int lane = threadIdx.x % kWarp;
  float column[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    float sums[4] = {i == lane ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 row = *reinterpret_cast<const float4*>(&s.halves[half][i][j]);
      sums[0] = __fmaf_rn(-row.x, column[j], sums[0]);
      if (j + 1 < i) sums[1] = __fmaf_rn(-row.y, column[j + 1], sums[1]);
      if (j + 2 < i) sums[2] = __fmaf_rn(-row.z, column[j + 2], sums[2]);
      if (j + 3 < i) sums[3] = __fmaf_rn(-row.w, column[j + 3], sums[3]);
    }
    column[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
#pragma unroll
  for (int i = 0; i < kHalf; i += 8) {
    uint4 high, low;
    split(column[i], column[i + 1], high.x, low.x);
    split(column[i + 2], column[i + 3], high.y, low.y);
    split(column[i + 4], column[i + 5], high.z, low.z);
    split(column[i + 6], column[i + 7], high.w, low.w);
    *reinterpret_cast<uint4*>(&s.inverses.halves[half][0][lane][i]) = high;
    *reinterpret_cast<uint4*>(&s.inverses.halves[half][1][lane][i]) = low;
  }
}

// sums [16][16] += a b of two parts each.
__device__ inline void multiply_parts(const Tile& a_high, const Tile& a_low, const Tile& b_high, const Tile& b_low,
                                      float (&first)[4], float (&second)[4]) {
  multiply(a_high, b_high, 0, first);
  multiply(a_high, b_high, 1, second);
  multiply(a_low, b_high, 0, first);
  multiply(a_low, b_high, 1, second);
  multiply(a_high, b_low, 0, first);
  multiply(a_high, b_low, 1, second);
}

// A's corner times the first half's inverse: 16 rows by each of two warps.
__device__ void multiply_corner(int rows, const Corner& corner, Inverses& s) {
  const int lane = threadIdx.x % kWarp;
  const TileLane at = columns_first(lane);
  float sums[4][4] = {};
#pragma unroll
  for (int pair = 0; pair < 2; ++pair)
#pragma unroll
    for (int step = pair; step < 2; ++step) {
      const Tile high = load_tile(&s.halves[0][0][16 * pair + at.row][16 * step + at.column]);
      const Tile low = load_tile(&s.halves[0][1][16 * pair + at.row][16 * step + at.column]);
      multiply_parts(corner.high[step], corner.low[step], high, low, sums[2 * pair], sums[2 * pair + 1]);
    }
#pragma unroll
  for (int tile = 0; tile < 4; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * rows + lane / 4 + 8 * half, column = 8 * tile + 2 * (lane % 4);
      std::uint32_t high, low;
      split(sums[tile][2 * half], sums[tile][2 * half + 1], high, low);
      *reinterpret_cast<std::uint32_t*>(&s.product[0][row][column]) = high;
      *reinterpret_cast<std::uint32_t*>(&s.product[1][row][column]) = low;
    }
}

// The halves of the inverse into the plan, six tiles in two parts.
__device__ void write_halves(const Piece& piece, const Inverses& s, int warp, int num_warps, ChunkPart& part) {
  const int lane = threadIdx.x % kWarp;
  const TileLane at = rows_first(lane);
  for (int i = warp; i < 12; i += num_warps) {
    const int half = i / 6, low = i / 3 % 2, row = i % 3 > 0, column = i % 3 > 1, block = 2 * half + row;
    if (16 * block >= piece.count) continue;
    const Tile tile = load_tile_transposed(&s.halves[half][low][16 * column + at.row][16 * row + at.column]);
    part.tiles[block * (block + 1) / 2 + 2 * half + column][low ? kSolveLow : kSolveHigh][lane] = words_of(tile);
  }
}

// The corner of the inverse, minus the second half's inverse times that product, into the plan: a tile by each of four
// warps.
__device__ void write_corner(const Piece& piece, const Inverses& s, int warp, ChunkPart& part) {
  const int lane = threadIdx.x % kWarp, row = warp / 2, column = warp % 2, block = 2 + row;
  if (16 * block >= piece.count) return;
  const TileLane a_at = columns_first(lane), b_at = rows_first(lane);
  float sums[2][4] = {};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    if (step > row) continue;
    Tile a[2], b[2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      a[which] = load_tile_transposed(&s.halves[1][which][16 * step + a_at.row][16 * row + a_at.column]);
      b[which] = load_tile_transposed(&s.product[which][16 * step + b_at.row][16 * column + b_at.column]);
    }
    multiply_parts(a[0], a[1], b[0], b[1], sums[0], sums[1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[0][i] = -sums[0][i];
    sums[1][i] = -sums[1][i];
  }
  Tile high, low;
  split_as_b(sums[0], sums[1], high, low);
  part.tiles[block * (block + 1) / 2 + column][kSolveHigh][lane] = words_of(high);
  part.tiles[block * (block + 1) / 2 + column][kSolveLow][lane] = words_of(low);
}

__device__ void write_factors(const PrepareShared& s, int token, ChunkPart& part) {
  const float sum = s.log_decay[token], last = s.log_decay[kChunk - 1], through = power_of_two(sum);
  part.factors[kBeta][token] = s.beta[token];
  part.factors[kKnown][token] = through * s.beta[token] * s.k_by[token];
  part.factors[kSeen][token] = through * s.q_by[token];
  part.factors[kKept][token] = power_of_two(last - sum) * s.k_by[token];
  part.factors[kLasting][token] = power_of_two(last);
}

// One chunk of one head at a time. T by halves of I + A: its corner is -T2 A T1.
template <class State>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) prepare(DeltaCall<Bf16, State> c, ChunkPlan plan) {
  await_inputs();
  extern __shared__ __align__(128) unsigned char memory[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
  const int warp = threadIdx.x / kWarp;
  for (int item = blockIdx.x;; item += gridDim.x) {
    const int head = item % c.heads;
    const Piece piece = piece_of(c.offsets, c.num_rows, kChunk, kLeastChunkTokens, item / c.heads, c.kept.tokens);
    if (piece.row < 0) return;
    ChunkPart& part = plan.part(head, piece.begin, piece.first, c.kept_tokens_of(piece.row));
    Gates gates;
    if (warp == 0) gates = read_gates(c, piece, head);
    read_chunk(c, piece, head, s);
    if (warp == 0) write_gates(gates, s);
    __syncthreads();
    Corner corner;
    multiply_keys(piece, part, s, corner);
    __syncthreads();
    if (warp < 2) invert_half(warp, s);
    if (warp >= kWarps - 2) write_factors(s, static_cast<int>(threadIdx.x) - (kThreads - kChunk), part);
    __syncthreads();
    if (warp >= 4) write_halves(piece, s.inverses, warp - 4, 4, part);
    if (warp == 2 || warp == 3) multiply_corner(warp - 2, corner, s.inverses);
    __syncthreads();
    if (warp < 4) write_corner(piece, s.inverses, warp, part);
    __syncthreads();
  }
}

}  // namespace

template <class State>
void launch_prepare(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int num_tokens) {
  allow_shared(prepare<State>, sizeof(PrepareShared));
  const int rows = std::min(call.num_rows, num_tokens / kLeastChunkTokens);  // at most, that go by chunks
  const int pieces = (call.kept.tokens ? 2 : 1) * rows + num_tokens / kChunk;
  const int grid = std::min(pieces * call.heads, kBlocksAtOnce * num_multiprocessors(context));
  launch_kernel(context, prepare<State>, grid, kThreads, sizeof(PrepareShared), call, plan);
}
template void launch_prepare(OpContext&, const DeltaCall<Bf16, float>&, const ChunkPlan&, int);
template void launch_prepare(OpContext&, const DeltaCall<Bf16, Bf16>&, const ChunkPlan&, int);

}  // namespace mstar::cuda
