// Rows of many tokens: tiles of 64 (token, head) pairs that share a kv head walk the keys in tiles of 64 with a running
// maximum, as in Dao, "FlashAttention-2" (2023). Products on tensor cores from bf16, sums in f32; weights are rounded
// to bf16 before they meet the values.
//
// Keys go in the same tiles whatever the tile of queries, and tiles that a query does not see leave its sums as they
// are: its bits do not depend on other rows, nor on how many queries come along.
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kTilePairs = 64;  // 16 of each warp

template <int kHeadDim>
struct TileMemory {
  bf16 queries[kTilePairs * kTileStride<kHeadDim>];
  bf16 keys[kTileKeys * kTileStride<kHeadDim>];
  bf16 values[kTileKeys * kTileStride<kHeadDim>];
  std::int64_t places[2][kTileKeys];
};

// A row's pairs are numbered token by token: pair p is token p / group, head p % group of the kv head.
struct QueryTile {
  int row = -1;
  int begin = 0, num_tokens = 0;  // of the row
  int first_pair = 0;
};

// Tile `index` of all rows that have at least `least` tokens. Within a row the last tiles, which see most keys, come
// first. Called by whole warps.
__device__ inline QueryTile find_tile(const std::int32_t* offsets, int num_rows, int group, int least, int index) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < num_rows; base += kWarp) {
    const int row = base + lane;
    const int begin = row < num_rows ? offsets[row] : 0;
    const int n = row < num_rows ? offsets[row + 1] - begin : 0;
    const int tiles = n >= least ? (n * group + kTilePairs - 1) / kTilePairs : 0;
    int end = tiles;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, step);
      if (lane >= step) end += other;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, index < before + end);
    if (beyond != 0) {
      const int source = __ffs(static_cast<int>(beyond)) - 1;
      const int its_end = __shfl_sync(kAllLanes, end, source);
      return {base + source, __shfl_sync(kAllLanes, begin, source), __shfl_sync(kAllLanes, n, source),
              (before + its_end - 1 - index) * kTilePairs};
    }
    before += __shfl_sync(kAllLanes, end, kWarp - 1);
  }
  return {};
}

__device__ inline void store_pair(bf16* to, float x, float y) {
  *reinterpret_cast<std::uint32_t*>(to) = pack_pair(x, y);
}

// One warp's scores of its 16 pairs against the tile's 64 keys.
template <int kHeadDim>
__device__ inline void score_tile(const TileMemory<kHeadDim>& memory, int warp, int lane,
                                  float (&scores)[kTileKeys / 8][4]) {
#pragma unroll
  for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0;
  }
  const bf16* const query = memory.queries + (warp * 16 + lane % 16) * kTileStride<kHeadDim> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[4];
    load_matrices(a, query + k * 16);
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, key_rows<kHeadDim>(memory.keys, n * 8, k * 16, lane));
      multiply_add(scores[n], a, b[0], b[1]);
      multiply_add(scores[n + 1], a, b[2], b[3]);
    }
  }
}

// Running maximum and sum of the two pairs whose parts this lane holds: of rows lane / 4 and lane / 4 + 8.
struct Running {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {};  // of this lane's keys
};

// Scores to weights. Keys from limits[half] on are hidden, counted from the tile's first key.
__device__ inline void weigh_tile(float (&scores)[kTileKeys / 8][4], bool masks, const int (&limits)[2], float factor,
                                  Running& running, float (&corrections)[2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = masks && n * 8 + 2 * t + i >= limits[half] ? -INFINITY : score * factor;
        most = fmaxf(most, score);
      }
    }
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    const float before = running.largest[half];
    running.largest[half] = fmaxf(before, most);
    const float base = running.largest[half] == -INFINITY ? 0.0f : running.largest[half];
    corrections[half] = exp2f(before - base);
    float total = running.total[half] * corrections[half];
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = exp2f(score - base);
        total += score;
      }
    }
    running.total[half] = total;
  }
}

template <int kHeadDim>
__device__ inline void add_values(const TileMemory<kHeadDim>& memory, int lane,
                                  const float (&weights)[kTileKeys / 8][4], float (&sums)[kHeadDim / 8][4]) {
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const std::uint32_t a[4] = {pack_pair(weights[2 * k][0], weights[2 * k][1]),
                                pack_pair(weights[2 * k][2], weights[2 * k][3]),
                                pack_pair(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                                pack_pair(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, value_rows<kHeadDim>(memory.values, k * 16, n * 8, lane));
      multiply_add(sums[n], a, b[0], b[1]);
      multiply_add(sums[n + 1], a, b[2], b[3]);
    }
  }
}

// Multiprocessors of an H100 or H200: so many blocks start at once, each beside one of the next so many.
constexpr int kFirstBlocks = 132;

// Which (tile, kv head) a block takes: those with most keys first, so that they do not end last. When all blocks start
// at once, the second of a multiprocessor is the shorter the longer its first.
__device__ inline int place_of_block() {
  const int block = blockIdx.x, num_blocks = gridDim.x;
  return block < kFirstBlocks || num_blocks > 2 * kFirstBlocks ? block : num_blocks + kFirstBlocks - 1 - block;
}

// Blocks (tile and kv head).
template <int kHeadDim>
__global__ void __launch_bounds__(kTileThreads, 2)
    attend_tiles(TokenHeads<const bf16> q, const std::int32_t* offsets, int num_rows, Pages pages, int group, int least,
                 float factor, HeadGate<bf16> gate, TokenHeads<bf16> out) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& memory = *reinterpret_cast<TileMemory<kHeadDim>*>(shared);
  const int place = place_of_block(), kv_head = place % pages.kv_heads;
  // What the plan says was there before the step's kernels, so it is read before theirs have ended. Every block waits
  // for them: the kernel behind this one relies on it.
  const QueryTile tile = find_tile(offsets, num_rows, group, least, place / pages.kv_heads);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int num_pairs = min(kTilePairs, tile.num_tokens * group - tile.first_pair);
  // Token i of the row sees `seen_by_first + i` keys; what lies past the row's pages cannot be read.
  const int seen_by_first = pages.lengths[max(tile.row, 0)] - tile.num_tokens + 1;
  const int capacity = pages.max_pages * pages.page_tokens;
  const auto keys_of = [&](int pair) { return min(seen_by_first + (tile.first_pair + pair) / group, capacity); };
  const int num_keys = keys_of(num_pairs - 1), least_keys = keys_of(0);
  const int num_tiles = (max(num_keys, 0) + kTileKeys - 1) / kTileKeys;
  const auto find_places = [&](int index) {
    if (threadIdx.x < kTileKeys) {
      const int position = index * kTileKeys + threadIdx.x;
      memory.places[index % 2][threadIdx.x] = position < num_keys ? pages.at(tile.row, position, kv_head) : -1;
    }
  };

  if (tile.row >= 0) find_places(0);
  await_inputs();
  if (tile.row < 0) return;
  for (int i = threadIdx.x; i < kTilePairs * (kHeadDim / 8); i += kTileThreads) {
    const int own = i / (kHeadDim / 8), chunk = i % (kHeadDim / 8), pair = tile.first_pair + own;
    const bf16* from = q.data;
    if (own < num_pairs)
      from += (tile.begin + pair / group) * q.token_stride + (kv_head * group + pair % group) * kHeadDim + chunk * 8;
    copy_16_async(memory.queries + own * kTileStride<kHeadDim> + chunk * 8, from, own < num_pairs);
  }
  __syncthreads();
  if (num_tiles > 0) copy_tile_async<kHeadDim>(memory.keys, pages.keys, memory.places[0]);
  commit_copies();  // with the queries
  if (num_tiles > 0) copy_tile_async<kHeadDim>(memory.values, pages.values, memory.places[0]);
  commit_copies();

  Running running;
  float sums[kHeadDim / 8][4] = {};
  const int own[2] = {warp * 16 + g, warp * 16 + g + 8};
  const int seen[2] = {own[0] < num_pairs ? keys_of(own[0]) : num_keys,
                       own[1] < num_pairs ? keys_of(own[1]) : num_keys};
  for (int index = 0; index < num_tiles; ++index) {
    const bool more = index + 1 < num_tiles;
    if (more) find_places(index + 1);
    wait_copies<1>();
    __syncthreads();  // this tile's keys and the next one's places
    float scores[kTileKeys / 8][4];
    score_tile<kHeadDim>(memory, warp, lane, scores);
    __syncthreads();  // the keys are read
    if (more) copy_tile_async<kHeadDim>(memory.keys, pages.keys, memory.places[(index + 1) % 2]);
    commit_copies();
    const int first_key = index * kTileKeys;
    const int limits[2] = {seen[0] - first_key, seen[1] - first_key};
    float corrections[2];
    weigh_tile(scores, first_key + kTileKeys > least_keys, limits, factor, running, corrections);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      sums[n][0] *= corrections[0], sums[n][1] *= corrections[0];
      sums[n][2] *= corrections[1], sums[n][3] *= corrections[1];
    }
    wait_copies<1>();
    __syncthreads();  // this tile's values
    add_values<kHeadDim>(memory, lane, scores, sums);
    __syncthreads();  // the values are read
    if (more) copy_tile_async<kHeadDim>(memory.values, pages.values, memory.places[(index + 1) % 2]);
    commit_copies();
  }
  wait_copies<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = running.total[half];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    if (own[half] >= num_pairs) continue;
    const float scale = total > 0 ? 1.0f / total : 0.0f;
    const int pair = tile.first_pair + own[half];
    const int token = tile.begin + pair / group, head = kv_head * group + pair % group;
    bf16* const to = out.data + token * out.token_stride + head * kHeadDim + 2 * t;
    const bf16* const gates = gate.data ? gate.at(token, head) + 2 * t : nullptr;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      float x = sums[n][2 * half] * scale, y = sums[n][2 * half + 1] * scale;
      if (gates) {
        const float2 pair_of_gates = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(gates + n * 8));
        x = gated<bf16>(x, pair_of_gates.x), y = gated<bf16>(y, pair_of_gates.y);
      }
      store_pair(to + n * 8, x, y);
    }
  }
}

template <int kHeadDim>
Status launch(OpContext& context, const PagedAttentionArgs& args, int least) {
  const Pages pages = pages_of(args.kv);
  const int group = static_cast<int>(args.q.dim(1)) / pages.kv_heads;
  // No more tiles than these, however the tokens are spread over the rows.
  const int tiles = args.rows.num_tokens * group / kTilePairs + args.rows.num_rows;
  constexpr std::size_t kBytes = sizeof(TileMemory<kHeadDim>);
  allow_shared(attend_tiles<kHeadDim>, kBytes);
  launch_kernel(context, attend_tiles<kHeadDim>, dim3(tiles * pages.kv_heads), kTileThreads, kBytes,
                token_heads_of<const bf16>(args.q), args.rows.offsets, args.rows.num_rows, pages, group, least,
                args.scale * 1.44269504088896341f, head_gate_of<bf16>(args.gate), token_heads_of<bf16>(args.out));
  return cuda_launch_status("attention_paged of many tokens");
}

}  // namespace

Status attention_prefill_cuda(OpContext& context, const PagedAttentionArgs& args, int least) {
  switch (args.kv.keys.dim(3)) {
    case 64:
      return launch<64>(context, args, least);
    case 128:
      return launch<128>(context, args, least);
    default:
      return launch<256>(context, args, least);
  }
}

}  // namespace mstar
