#include "mstar/ops/delta_rule/delta_chunk_cuda.cuh"

namespace mstar::cuda {
namespace {

constexpr int kKeys = kMostKeyDim;
constexpr int kTiles = kSlice / 8;  // of eight columns
constexpr int kPairs = kSlice / 16;

// What a chunk brings. Rows past its tokens are zeros.
struct Stage {
  Bf16 k[kChunk][kKeys + 8], q[kChunk][kKeys + 8];
  Bf16 v[kChunk][kSlice + 8];
  Bf16 solve_high[kChunk][kChunk + 8], solve_low[kChunk][kChunk + 8];
  Bf16 score_high[kChunk][kChunk + 8], score_low[kChunk][kChunk + 8];
  float factors[kNumFactors][kChunk];
};
// A matrix as two of bf16.
template <int kRows>
struct Split {
  Bf16 high[kRows][kSlice + 8], low[kRows][kSlice + 8];
};
struct Changes {
  Split<kChunk> change;  // U
  Split<kChunk> kept;    // U as it stays in the state at the end of the chunk
};
struct Matrices {
  union {
    Split<kKeys> state;  // until all have asked it
    Changes u;           // from then on
  };
  Split<kChunk> rest;  // R
};
// With two stages the next chunk comes while this one is worked on; with one, two blocks share a multiprocessor.
template <int kStages>
struct ScanShared {
  Stage stages[kStages];
  Matrices matrices;
};

struct Place {
  int head = 0, slice = 0;
  int begin = 0, total = 0;  // tokens of the row
  int kept = 0;              // of them, after which its state is kept too
  // Of the chunk that begins with token `first`.
  __device__ int end_of(int first) const { return min(first + kChunk, first < kept ? kept : total); }
};

template <class State>
__device__ void read_stage(const DeltaCall<Bf16, State>& c, const ChunkPlan& plan, const Place& place, int first,
                           Stage& to) {
  const int count = place.end_of(first) - first;
  const std::int64_t token = place.begin + first, key_at = c.key_head_of(place.head) * kKeys;
  for (int i = threadIdx.x; i < kChunk * kKeys / 8; i += kChunkThreads) {
    const int row = i / (kKeys / 8), column = i % (kKeys / 8) * 8;
    const bool real = row < count;
    const std::int64_t from = token + (real ? row : 0);
    copy_16(&to.k[row][column], c.k + from * c.k_stride + key_at + column, real);
    copy_16(&to.q[row][column], c.q + from * c.q_stride + key_at + column, real);
  }
  for (int i = threadIdx.x; i < kChunk * kSlice / 8; i += kChunkThreads) {
    const int row = i / (kSlice / 8), column = i % (kSlice / 8) * 8;
    const bool real = row < count;
    const std::int64_t from = token + (real ? row : 0);
    copy_16(&to.v[row][column], c.v + from * c.v_stride + place.head * c.value_dim + place.slice * kSlice + column,
            real);
  }
  const std::int64_t plan_row = static_cast<std::int64_t>(place.head) * plan.tokens + token;
  for (int i = threadIdx.x; i < kChunk * kChunk / 8; i += kChunkThreads) {
    const int row = i / (kChunk / 8), column = i % (kChunk / 8) * 8;
    const bool real = row < count;
    const std::int64_t from = (plan_row + (real ? row : 0)) * kChunk + column;
    copy_16(&to.solve_high[row][column], plan.solve_high + from, real);
    copy_16(&to.solve_low[row][column], plan.solve_low + from, real);
    copy_16(&to.score_high[row][column], plan.score_high + from, real);
    copy_16(&to.score_low[row][column], plan.score_low + from, real);
  }
  for (int i = threadIdx.x; i < kNumFactors * kChunk; i += kChunkThreads) {
    const int factor = i / kChunk, row = i % kChunk;
    const bool real = row < count;
    copy_4(&to.factors[factor][row],
           plan.factors + static_cast<std::int64_t>(factor) * c.heads * plan.tokens + plan_row + (real ? row : 0),
           real);
  }
}

__device__ inline float2 read_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }
__device__ inline float2 read_pair(const Bf16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
__device__ inline void write_pair(float x, float y, float* to) { *reinterpret_cast<float2*>(to) = make_float2(x, y); }
__device__ inline void write_pair(float x, float y, Bf16* to) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}

// The state's tiles of warps 0 to 3: 32 keys each, all columns of the slice.
using StateTiles = float[2][kTiles][4];
// run(key, column, first, second) for each pair of neighbours that this lane holds.
template <class Run>
__device__ inline void for_state(StateTiles& tiles, Run run) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        run(32 * warp + 16 * block + lane / 4 + 8 * half, 8 * tile + 2 * (lane % 4), tiles[block][tile][2 * half],
            tiles[block][tile][2 * half + 1]);
}

// sums += A (16 rows of `a`) B, where B is split: its columns are those of the slice.
template <int kRows>
__device__ inline void multiply_split(const Tile& a, const Split<kRows>& b, int row, int column,
                                      float (&sums)[kTiles][4]) {
  Tile high[kPairs], low[kPairs];
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    high[pair] = load_tile_transposed(&b.high[row][16 * pair + column]);
    low[pair] = load_tile_transposed(&b.low[row][16 * pair + column]);
  }
  // Neighbours do not wait for one another.
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) multiply(a, high[tile / 2], tile % 2, sums[tile]);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) multiply(a, low[tile / 2], tile % 2, sums[tile]);
}

// What the state says of 16 keys (warps 0 to 3) or queries (4 to 7).
__device__ void ask_state(const Matrices& s, const Stage& stage, float (&sums)[kTiles][4]) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const TileLane at = rows_first(lane);
  const auto& from = warp < 4 ? stage.k : stage.q;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const Tile a = load_tile(&from[16 * (warp % 4) + at.row][16 * step + at.column]);
    multiply_split(a, s.state, 16 * step + at.row, at.column, sums);
  }
}

// R: what is new of the values. Warps 0 to 3.
__device__ void write_rest(Matrices& s, const Stage& stage, const float (&known)[kTiles][4]) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = 16 * warp + lane / 4 + 8 * half;
    const float beta = stage.factors[kBeta][t], by = -stage.factors[kKnown][t];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = 8 * tile + 2 * (lane % 4);
      const float2 v = read_pair(&stage.v[t][column]);
      store_split(__fmaf_rn(by, known[tile][2 * half], beta * v.x),
                  __fmaf_rn(by, known[tile][2 * half + 1], beta * v.y), &s.rest.high[t][column],
                  &s.rest.low[t][column]);
    }
  }
}

// U = T R: 16 tokens and half of the slice a warp.
__device__ void solve(Matrices& s, const Stage& stage) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, block = warp % 4, column = kSlice / 2 * (warp / 4);
  const TileLane at = rows_first(lane);
  static_assert(kSlice / 2 == 16);
  float sums[2][4] = {};
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    if (step > block) continue;  // T is zero above its diagonal
    const int row = 16 * block + at.row, k = 16 * step;
    const Tile a_high = load_tile(&stage.solve_high[row][k + at.column]);
    const Tile a_low = load_tile(&stage.solve_low[row][k + at.column]);
    const Tile b_high = load_tile_transposed(&s.rest.high[k + at.row][column + at.column]);
    const Tile b_low = load_tile_transposed(&s.rest.low[k + at.row][column + at.column]);
#pragma unroll
    for (int which = 0; which < 2; ++which) multiply(a_high, b_high, which, sums[which]);
#pragma unroll
    for (int which = 0; which < 2; ++which) multiply(a_high, b_low, which, sums[which]);
#pragma unroll
    for (int which = 0; which < 2; ++which) multiply(a_low, b_high, which, sums[which]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = 16 * block + lane / 4 + 8 * half;
    const float by = stage.factors[kKept][t];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int to = column + 8 * tile + 2 * (lane % 4);
      const float x = sums[tile][2 * half], y = sums[tile][2 * half + 1];
      store_split(x, y, &s.u.change.high[t][to], &s.u.change.low[t][to]);
      store_split(by * x, by * y, &s.u.kept.high[t][to], &s.u.kept.low[t][to]);
    }
  }
}

// The state at the end of the chunk. Warps 0 to 3.
__device__ void update_state(const Matrices& s, const Stage& stage, StateTiles& tiles) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float lasting = stage.factors[kLasting][0];
  for_state(tiles, [&](int, int, float& x, float& y) {
    x *= lasting;
    y *= lasting;
  });
  const TileLane a_at = columns_first(lane), b_at = rows_first(lane);
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const Tile a = load_tile_transposed(&stage.k[16 * step + a_at.row][32 * warp + 16 * block + a_at.column]);
      multiply_split(a, s.u.kept, 16 * step + b_at.row, b_at.column, tiles[block]);
    }
  }
}

// Outputs of 16 tokens of the chunk [first, end). Warps 4 to 7; `sums` are what the state says of their queries.
template <class State>
__device__ void write_outputs(const DeltaCall<Bf16, State>& c, const Place& place, int first, int end,
                              const Matrices& s, const Stage& stage, float (&sums)[kTiles][4]) {
  const int block = threadIdx.x / kWarp - 4, lane = threadIdx.x % kWarp;
  const TileLane at = rows_first(lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float by = stage.factors[kSeen][16 * block + lane / 4 + 8 * half];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      sums[tile][2 * half] *= by;
      sums[tile][2 * half + 1] *= by;
    }
  }
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    if (step > block) continue;
    const int row = 16 * block + at.row, k = 16 * step;
    const Tile high = load_tile(&stage.score_high[row][k + at.column]);
    multiply_split(high, s.u.change, k + at.row, at.column, sums);
    const Tile low = load_tile(&stage.score_low[row][k + at.column]);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const Tile b = load_tile_transposed(&s.u.change.high[k + at.row][16 * pair + at.column]);
      multiply(low, b, 0, sums[2 * pair]);
      multiply(low, b, 1, sums[2 * pair + 1]);
    }
  }
  Bf16* const out = c.out + place.head * c.value_dim + place.slice * kSlice;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = first + 16 * block + lane / 4 + 8 * half;
    if (t >= end) continue;
    Bf16* const to = out + (place.begin + t) * c.out_stride + 2 * (lane % 4);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) write_pair(sums[tile][2 * half], sums[tile][2 * half + 1], to + 8 * tile);
  }
}

// One slice of one head of one row a block, chunk after chunk.
template <class State, int kStages>
__global__ void __launch_bounds__(kChunkThreads, 3 - kStages) scan(DeltaCall<Bf16, State> c, ChunkPlan plan) {
  await_inputs();
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared<kStages>*>(memory);
  Matrices& s = shared.matrices;
  const int slices = c.value_dim / kSlice, warp = threadIdx.x / kWarp;
  const int row = blockIdx.x / slices / c.heads;
  Place place;
  place.slice = blockIdx.x % slices;
  place.head = blockIdx.x / slices % c.heads;
  place.begin = c.offsets[row];
  place.total = c.offsets[row + 1] - place.begin;
  if (place.total < kLeastChunkTokens) return;
  place.kept = c.kept_tokens_of(row);
  const State* const old = c.old_state_of(row, place.head) + place.slice * kSlice;
  StateTiles tiles = {};
  read_stage(c, plan, place, 0, shared.stages[0]);
  end_copies();
  if (warp < 4 && c.positions[place.begin] != 0)
    for_state(tiles, [&](int key, int column, float& x, float& y) {
      const float2 pair = read_pair(old + static_cast<std::int64_t>(key) * c.value_dim + column);
      x = pair.x;
      y = pair.y;
    });
  const auto store = [&](State* to) {
    for_state(tiles, [&](int key, int column, float& x, float& y) {
      write_pair(x, y, to + place.slice * kSlice + static_cast<std::int64_t>(key) * c.value_dim + column);
    });
  };
  int which = 0;
  for (int first = 0, next = 0; first < place.total; first = next, which = (which + 1) % kStages) {
    const Stage& stage = shared.stages[which];
    next = place.end_of(first);
    if constexpr (kStages == 2) {
      if (next < place.total) read_stage(c, plan, place, next, shared.stages[which ^ 1]);
      end_copies();
    }
    if (warp < 4)
      for_state(tiles, [&](int key, int column, float& x, float& y) {
        store_split(x, y, &s.state.high[key][column], &s.state.low[key][column]);
      });
    wait_for_copies<kStages - 1>();
    __syncthreads();
    float sums[kTiles][4] = {};
    ask_state(s, stage, sums);
    if (warp < 4) write_rest(s, stage, sums);
    __syncthreads();
    solve(s, stage);
    __syncthreads();
    if (warp < 4) {
      update_state(s, stage, tiles);
      if (next == place.kept) store(c.kept_state_of(row, place.head));
    } else {
      write_outputs(c, place, first, next, s, stage, sums);
    }
    __syncthreads();
    if constexpr (kStages == 1) {
      if (next < place.total) read_stage(c, plan, place, next, shared.stages[0]);
      end_copies();
    }
  }
  if (warp < 4) store(c.state_of(row, place.head));
}

template <class State, int kStages>
void launch_with(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int blocks) {
  constexpr std::size_t kBytes = sizeof(ScanShared<kStages>);
  check_cuda(cudaFuncSetAttribute(scan<State, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "cudaFuncSetAttribute");
  launch_kernel(context, scan<State, kStages>, blocks, kChunkThreads, kBytes, call, plan);
}

}  // namespace

template <class State>
void launch_scan(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan) {
  int multiprocessors = 0;
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, context.device.id().index),
             "cudaDeviceGetAttribute");
  const int blocks = call.num_rows * call.heads * (call.value_dim / kSlice);
  // The bits are the same.
  if (blocks <= multiprocessors) {
    launch_with<State, 2>(context, call, plan, blocks);
  } else {
    launch_with<State, 1>(context, call, plan, blocks);
  }
}
template void launch_scan(OpContext&, const DeltaCall<Bf16, float>&, const ChunkPlan&);
template void launch_scan(OpContext&, const DeltaCall<Bf16, Bf16>&, const ChunkPlan&);

}  // namespace mstar::cuda
