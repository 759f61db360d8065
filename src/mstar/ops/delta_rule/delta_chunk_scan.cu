#include "mstar/ops/delta_rule/delta_chunk_cuda.cuh"

namespace mstar::cuda {
namespace {

constexpr int kKeys = kMostKeyDim;
constexpr int kTokenTiles = kChunk / 8, kKeyTiles = kKeys / 8;  // a warp's products: 16 columns by so many eights

// What a chunk brings. Rows past its tokens are zeros.
template <int kWarps>
struct Stage {
  Bf16 k[kChunk][kKeys + 8], q[kChunk][kKeys + 8];
  Bf16 v[kChunk][kWarps * kColumns + 8];  // each warp's columns; then what it puts out for them
  ChunkPart part;
};

struct Place {
  int row = -1, head = 0, slice = 0;
  int begin = 0, total = 0;  // tokens of the row
  int kept = 0;              // of them, after which its state is kept too
  // Of the chunk that begins with token `first`.
  __device__ int end_of(int first) const { return min(first + kChunk, first < kept ? kept : total); }
};

// The row that is the index-th of those that go by chunks, or -1. Called by whole warps.
__device__ inline int long_row(const std::int32_t* offsets, int num_rows, int index) {
  for (int base = 0; base < num_rows; base += kWarp) {
    const int row = base + static_cast<int>(threadIdx.x) % kWarp;
    unsigned rows = __ballot_sync(kAllLanes, row < num_rows && offsets[row + 1] - offsets[row] >= kLeastChunkTokens);
    const int count = __popc(rows);
    if (index < count) {
      for (; index > 0; --index) rows &= rows - 1;
      return base + __ffs(static_cast<int>(rows)) - 1;
    }
    index -= count;
  }
  return -1;
}

template <class State>
__device__ Place place_of(const DeltaCall<Bf16, State>& c, int slices, int item) {
  Place place;
  place.slice = item % slices;
  place.head = item / slices % c.heads;
  place.row = long_row(c.offsets, c.num_rows, item / slices / c.heads);
  if (place.row < 0) return place;
  place.begin = c.offsets[place.row];
  place.total = c.offsets[place.row + 1] - place.begin;
  place.kept = c.kept_tokens_of(place.row);
  return place;
}

template <class State, int kWarps>
__device__ void read_tokens(const DeltaCall<Bf16, State>& c, const Place& place, int first, Stage<kWarps>& to) {
  const int count = place.end_of(first) - first;
  const std::int64_t token = place.begin + first, key_at = c.key_head_of(place.head) * kKeys;
  constexpr int kThreads = kWarps * kWarp, kAcross = kKeys / 8, kDown = kThreads / kAcross;
  const int column = static_cast<int>(threadIdx.x) % kAcross * 8;
#pragma unroll
  for (int i = 0; i < kChunk / kDown; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kAcross + i * kDown;
    const bool real = row < count;
    const std::int64_t from = token + (real ? row : 0);
    copy_16(&to.k[row][column], c.k + from * c.k_stride + key_at + column, real);
    copy_16(&to.q[row][column], c.q + from * c.q_stride + key_at + column, real);
  }
  constexpr int kOwn = kWarps * kColumns, kOwnAcross = kOwn / 8;
  const Bf16* const v = c.v + place.head * c.value_dim + place.slice * kOwn;
#pragma unroll
  for (int i = 0; i < kChunk * kOwnAcross / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads, row = at / kOwnAcross, own = at % kOwnAcross * 8;
    const bool real = row < count;
    copy_16(&to.v[row][own], v + (token + (real ? row : 0)) * c.v_stride + own, real);
  }
}

template <class State, int kWarps>
__device__ void read_part(const DeltaCall<Bf16, State>& c, const ChunkPlan& plan, const Place& place, int first,
                          Stage<kWarps>& to) {
  const int bytes = part_bytes(place.end_of(first) - first);
  const auto* const from =
      reinterpret_cast<const unsigned char*>(&plan.part(place.head, place.begin, first, place.kept));
  auto* const part = reinterpret_cast<unsigned char*>(&to.part);
  for (int at = 16 * static_cast<int>(threadIdx.x); at < static_cast<int>(sizeof(ChunkPart)); at += 16 * kWarps * kWarp)
    copy_16(part + at, from + (at < bytes ? at : 0), at < bytes);
}

// A warp's columns of the state, transposed: sums of 16 columns by eight keys.
using StateTiles = float[kKeyTiles][4];
// run(key, column, number) for each number that this lane holds; column: of the block's.
template <class Run>
__device__ inline void for_state(StateTiles& state, Run run) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      run(8 * tile + 2 * (lane % 4) + i % 2, kColumns * warp + lane / 4 + 8 * (i / 2), state[tile][i]);
}

using Sums = float[kTokenTiles][4];  // of 16 columns by eight tokens

// What the state says of the chunk's keys and queries.
template <int kWarps>
__device__ inline void ask_state(const StateTiles& state, const Stage<kWarps>& stage, Sums& known, Sums& seen) {
  const TileLane at = columns_first(threadIdx.x % kWarp);
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    Tile high, low;
    split_as_a(state[2 * step], state[2 * step + 1], high, low);
    Tile k[kTileRows], q[kTileRows];
#pragma unroll
    for (int pair = 0; pair < kTileRows; ++pair) {
      k[pair] = load_tile(&stage.k[16 * pair + at.row][16 * step + at.column]);
      q[pair] = load_tile(&stage.q[16 * pair + at.row][16 * step + at.column]);
    }
    // Neighbours do not wait for one another.
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) multiply(high, k[tile / 2], tile % 2, known[tile]);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) multiply(high, q[tile / 2], tile % 2, seen[tile]);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) multiply(low, k[tile / 2], tile % 2, known[tile]);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) multiply(low, q[tile / 2], tile % 2, seen[tile]);
  }
}

__device__ inline float2 factor_pair(const ChunkPart& part, ChunkFactor factor, int tile) {
  return *reinterpret_cast<const float2*>(&part.factors[factor][8 * tile + 2 * (threadIdx.x % 4)]);
}

// R, what is new of the values, in the place of what is known of them.
template <int kWarps>
__device__ inline void rest_of(const Stage<kWarps>& stage, Sums& known) {
  const int warp = threadIdx.x / kWarp;
  const TileLane at = rows_first(threadIdx.x % kWarp);
#pragma unroll
  for (int pair = 0; pair < kTileRows; ++pair) {
    const Tile v = load_tile_transposed(&stage.v[16 * pair + at.row][kColumns * warp + at.column]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 beta = factor_pair(stage.part, kBeta, 2 * pair + n);
      const float2 by = factor_pair(stage.part, kKnown, 2 * pair + n);
      float(&sums)[4] = known[2 * pair + n];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 value = unpack(v.words[n + 2 * half]);
        sums[2 * half] = __fmaf_rn(-by.x, sums[2 * half], beta.x * value.x);
        sums[2 * half + 1] = __fmaf_rn(-by.y, sums[2 * half + 1], beta.y * value.y);
      }
    }
  }
}

// sums += X M^T of a lower triangle M of the chunk's part, X in two parts.
__device__ inline void multiply_lower(const Tile (&high)[kTileRows], const Tile (&low)[kTileRows],
                                      const ChunkPart& part, ChunkMatrix of_high, ChunkMatrix of_low, Sums& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 0; step < kTileRows; ++step) {
    Tile m_high[kTileRows], m_low[kTileRows];
#pragma unroll
    for (int row = step; row < kTileRows; ++row) {
      const int tile = row * (row + 1) / 2 + step;
      m_high[row] = tile_of(part.tiles[tile][of_high][lane]);
      m_low[row] = tile_of(part.tiles[tile][of_low][lane]);
    }
#pragma unroll
    for (int tile = 2 * step; tile < kTokenTiles; ++tile) multiply(high[step], m_high[tile / 2], tile % 2, sums[tile]);
#pragma unroll
    for (int tile = 2 * step; tile < kTokenTiles; ++tile) multiply(low[step], m_high[tile / 2], tile % 2, sums[tile]);
#pragma unroll
    for (int tile = 2 * step; tile < kTokenTiles; ++tile) multiply(high[step], m_low[tile / 2], tile % 2, sums[tile]);
  }
}

__device__ inline void split_all(const Sums& sums, Tile (&high)[kTileRows], Tile (&low)[kTileRows]) {
#pragma unroll
  for (int pair = 0; pair < kTileRows; ++pair) split_as_a(sums[2 * pair], sums[2 * pair + 1], high[pair], low[pair]);
}

// The state at the end of the chunk.
template <int kWarps>
__device__ inline void update_state(const Stage<kWarps>& stage, const Sums& changes, StateTiles& state) {
  const TileLane at = rows_first(threadIdx.x % kWarp);
  const float lasting = stage.part.factors[kLasting][0];
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) state[tile][i] *= lasting;
#pragma unroll
  for (int step = 0; step < kTileRows; ++step) {
    float kept[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 by = factor_pair(stage.part, kKept, 2 * step + n);
#pragma unroll
      for (int i = 0; i < 4; ++i) kept[n][i] = changes[2 * step + n][i] * (i % 2 ? by.y : by.x);
    }
    Tile high, low;
    split_as_a(kept[0], kept[1], high, low);
#pragma unroll
    for (int part = 0; part < kKeys / 64; ++part) {
      Tile k[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        k[pair] = load_tile_transposed(&stage.k[16 * step + at.row][64 * part + 16 * pair + at.column]);
#pragma unroll
      for (int tile = 0; tile < 8; ++tile) multiply(high, k[tile / 2], tile % 2, state[8 * part + tile]);
#pragma unroll
      for (int tile = 0; tile < 8; ++tile) multiply(low, k[tile / 2], tile % 2, state[8 * part + tile]);
    }
  }
}

// Through the values' place in the stage, which nobody else reads.
template <class State, int kWarps>
__device__ inline void write_outputs(const DeltaCall<Bf16, State>& c, const Place& place, int first, int count,
                                     Stage<kWarps>& stage, const Sums& out) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const TileLane at = rows_first(lane);
#pragma unroll
  for (int pair = 0; pair < kTileRows; ++pair) {
    const float(&a)[4] = out[2 * pair];
    const float(&b)[4] = out[2 * pair + 1];
    const Tile tile = {{pack(a[0], a[1]), pack(b[0], b[1]), pack(a[2], a[3]), pack(b[2], b[3])}};
    store_tile_transposed(tile, &stage.v[16 * pair + at.row][kColumns * warp + at.column]);
  }
  __syncwarp();
  const int column = kColumns * warp + 8 * (lane % 2);
  Bf16* const to = c.out + (place.begin + first) * c.out_stride + place.head * c.value_dim +
                   place.slice * kWarps * kColumns + column;
#pragma unroll
  for (int i = 0; i < kChunk / 16; ++i) {
    const int t = 16 * i + lane / 2;
    if (t < count)
      *reinterpret_cast<uint4*>(to + t * c.out_stride) = *reinterpret_cast<const uint4*>(&stage.v[t][column]);
  }
}

// One chunk of a warp's columns.
template <class State, int kWarps>
__device__ inline void advance(const DeltaCall<Bf16, State>& c, const Place& place, int first, int count,
                               Stage<kWarps>& stage, StateTiles& state) {
  Sums known = {}, out = {};
  ask_state(state, stage, known, out);
  rest_of(stage, known);
  Sums changes = {};
  Tile high[kTileRows], low[kTileRows];
  split_all(known, high, low);
  multiply_lower(high, low, stage.part, kSolveHigh, kSolveLow, changes);
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const float2 by = factor_pair(stage.part, kSeen, tile);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[tile][i] *= i % 2 ? by.y : by.x;
  }
  split_all(changes, high, low);
  multiply_lower(high, low, stage.part, kScoreHigh, kScoreLow, out);
  write_outputs(c, place, first, count, stage, out);
  update_state(stage, changes, state);
}

// Some columns of one head of one row at a time, chunk after chunk. With two stages the next chunk comes while this one
// is worked on; with one, two blocks share a multiprocessor.
template <class State, int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps* kWarp, 3 - kStages) scan(DeltaCall<Bf16, State> c, ChunkPlan plan) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto* const stages = reinterpret_cast<Stage<kWarps>*>(memory);
  constexpr int kOwn = kWarps * kColumns;
  const int slices = c.value_dim / kOwn;
  // `prepare` began with await_inputs(), so all but its plan was there before.
  bool waited = false;
  const auto wait_for_plan = [&] {
    if (!waited) await_inputs();
    waited = true;
  };
  for (int item = blockIdx.x;; item += gridDim.x) {
    const Place place = place_of(c, slices, item);
    if (place.row < 0) break;
    const auto read_stage = [&](int first, Stage<kWarps>& to) {
      if (first < place.total) {
        read_tokens(c, place, first, to);
        wait_for_plan();
        read_part(c, plan, place, first, to);
      }
      end_copies();
    };
    StateTiles state = {};
    if (c.positions[place.begin] != 0) {
      const State* const old = c.old_state_of(place.row, place.head) + place.slice * kOwn;
      for_state(state, [&](int key, int column, float& x) { x = widen(__ldcg(old + key * c.value_dim + column)); });
    }
    const auto store = [&](State* to) {
      for_state(state, [&](int key, int column, float& x) {
        to[place.slice * kOwn + key * c.value_dim + column] = narrow<State>(x);
      });
    };
    read_stage(0, stages[0]);
    if constexpr (kStages == 2) read_stage(place.end_of(0), stages[1]);
    int which = 0;
    for (int first = 0, next = 0; first < place.total; first = next) {
      Stage<kWarps>& stage = stages[which];
      next = place.end_of(first);
      wait_for_copies<kStages - 1>();
      __syncthreads();
      advance(c, place, first, next - first, stage, state);
      if (next == place.kept) store(c.kept_state_of(place.row, place.head));
      __syncthreads();
      read_stage(kStages == 1 || next >= place.total ? next : place.end_of(next), stage);
      which = (which + 1) % kStages;
    }
    store(c.state_of(place.row, place.head));
  }
  wait_for_plan();
}

template <class State, int kWarps, int kStages>
void launch_with(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int items) {
  constexpr std::size_t kBytes = kStages * sizeof(Stage<kWarps>);
  allow_shared(scan<State, kWarps, kStages>, kBytes);
  const int blocks = std::min(items, (3 - kStages) * num_multiprocessors(context));
  launch_kernel(context, scan<State, kWarps, kStages>, blocks, kWarps * kWarp, kBytes, call, plan);
}

}  // namespace

template <class State>
void launch_scan(OpContext& context, const DeltaCall<Bf16, State>& call, const ChunkPlan& plan, int num_tokens) {
  const int most_rows = std::min(call.num_rows, num_tokens / kLeastChunkTokens);
  if (call.value_dim % (4 * kColumns) != 0)
    return launch_with<State, 2, 2>(context, call, plan, most_rows * call.heads * (call.value_dim / (2 * kColumns)));
  // How many rows go by chunks only the device knows. The bits are the same.
  constexpr int kUsualPrompt = 640;
  const int slices = call.heads * (call.value_dim / (4 * kColumns));
  const int usual_rows = std::min(most_rows, std::max(1, num_tokens / kUsualPrompt));
  if (usual_rows * slices <= num_multiprocessors(context)) {
    launch_with<State, 4, 2>(context, call, plan, most_rows * slices);
  } else {
    launch_with<State, 4, 1>(context, call, plan, most_rows * slices);
  }
}
template void launch_scan(OpContext&, const DeltaCall<Bf16, float>&, const ChunkPlan&, int);
template void launch_scan(OpContext&, const DeltaCall<Bf16, Bf16>&, const ChunkPlan&, int);

}  // namespace mstar::cuda
