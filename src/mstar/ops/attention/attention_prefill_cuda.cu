// Rows of many tokens: tiles of 128 (token, head) pairs that share a kv head walk the keys in tiles of 64 with a
// running maximum, as in Dao, "FlashAttention-2" (2023), by products of warp groups: two of them have 64 pairs each,
// read keys and values where they lie in shared memory, and hold the weights, rounded to bf16, in registers. One tile
// of keys and values is on its way while another is in use, and one group's scores are made while the other's become
// weights.
//
// Keys go in the same tiles whatever the tile of queries, and tiles that a query does not see leave its sums as they
// are: its bits do not depend on other rows, nor on how many queries come along.
#include <cstddef>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/group_tiles_cuda.cuh"
#include "mstar/ops/cuda_rows.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kTilePairs = kGroups * kGroupPairs;
constexpr int kStages = 2;
constexpr int kTileBytes = kTileKeys * kRowBytes;

// Tiles as products read them, on 1 KiB, 64 dimensions each.
template <int kHeadDim>
struct TileMemory {
  static constexpr int kTiles = kHeadDim / kTileColumns;
  std::byte queries[kTiles][kTilePairs * kRowBytes];
  std::byte keys[kStages][kTiles][kTileBytes];
  std::byte values[kStages][kTiles][kTileBytes];
  int2 pairs[kTilePairs];  // token and head
};
constexpr std::uint64_t kNextQueries = kTilePairs * kRowBytes >> 4, kNextKeys = kTileBytes >> 4;

// What the block writes at the end, before it is scaled by the gate: rows of each warp's 16 pairs.
template <int kHeadDim>
struct Outcome {
  static constexpr int kStride = kHeadDim + 4;  // rows off one another's banks
  float rows[kThreads / kWarp][16][kStride];
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

// Running maximum and sum of the two pairs whose parts this lane holds: of rows lane / 4 and lane / 4 + 8.
struct Running {
  float largest[2] = {-INFINITY, -INFINITY};  // of the scores before they are scaled
  float total[2] = {};                        // of this lane's keys
};

// Scores to weights. Keys from limits[half] on are hidden, counted from the tile's first key.
__device__ inline void weigh_tile(float (&scores)[kEights][4], bool masks, const int (&limits)[2], float factor,
                                  Running& running, float (&corrections)[2]) {
  const int t = threadIdx.x % 4;
  if (masks) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (n * 8 + 2 * t + i % 2 >= limits[i / 2]) scores[n][i] = -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = running.largest[half];
#pragma unroll
    for (int n = 0; n < kEights; ++n) most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    const float base = most == -INFINITY ? 0.0f : most, shift = base * factor;
    corrections[half] = power_of_two((running.largest[half] - base) * factor);
    running.largest[half] = most;
    float total = running.total[half] * corrections[half];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = power_of_two(fmaf(score, factor, -shift));
        total += score;
      }
    }
    running.total[half] = total;
  }
}

// Pages hold whole units of so many keys.
constexpr int kUnitKeys = 16, kTileUnits = kTileKeys / kUnitKeys;

// Copies a tile of keys and values: unit u of them from element `place` of lane u on. Rows from `left` on become zeros.
template <int kHeadDim>
__device__ inline void copy_tile(std::byte* keys_to, std::byte* values_to, const Pages& pages, std::int64_t place,
                                 int left) {
  constexpr int kChunks = kHeadDim / 8, kRowsAtOnce = kThreads / kChunks;
  constexpr int kRowsAUnit = kRowsAtOnce < kUnitKeys ? kUnitKeys / kRowsAtOnce : 1;
  static_assert(kRowsAtOnce % 8 == 0 && kWarp / kChunks <= kUnitKeys);
  const int first = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
  const auto stride = static_cast<int>(pages.stride());
  const int to = chunk / kRowChunks * kTileBytes + first * kRowBytes + ((chunk % kRowChunks ^ first % 8) << 4);
  const bf16 *keys = nullptr, *values = nullptr;
#pragma unroll
  for (int i = 0; i < kTileKeys / kRowsAtOnce; ++i) {
    const int row = i * kRowsAtOnce + first;
    if (i % kRowsAUnit == 0) {
      const std::int64_t unit = __shfl_sync(kAllLanes, place, row / kUnitKeys) + row % kUnitKeys * stride + chunk * 8;
      keys = static_cast<const bf16*>(pages.keys) + unit;
      values = static_cast<const bf16*>(pages.values) + unit;
    } else {
      keys += kRowsAtOnce * stride;
      values += kRowsAtOnce * stride;
    }
    copy_16_async(keys_to + to + i * kRowsAtOnce * kRowBytes, keys, row < left);
    copy_16_async(values_to + to + i * kRowsAtOnce * kRowBytes, values, row < left);
  }
}

// Multiprocessors of an H100 or H200: so many blocks start at once, each beside one of the next so many where they are
// small enough.
constexpr int kFirstBlocks = 132;

// Which (tile, kv head) a block takes: those with most keys first, so that they do not end last. When all blocks start
// at once, the second of a multiprocessor is the shorter the longer its first.
template <int kHeadDim>
__device__ inline int place_of_block() {
  const int block = blockIdx.x, num_blocks = gridDim.x;
  const bool in_order = kHeadDim > 128 || block < kFirstBlocks || num_blocks > 2 * kFirstBlocks;
  return in_order ? block : num_blocks + kFirstBlocks - 1 - block;
}

// A warp's 16 pairs, the first `count` of them, to the output: 16 bytes a lane.
template <int kHeadDim>
__device__ inline void write_rows(const float (&rows)[16][Outcome<kHeadDim>::kStride], const int2* pairs, int count,
                                  const HeadGate<bf16>& gate, const TokenHeads<bf16>& out) {
  constexpr int kLanes = kHeadDim / kUnit, kRowsAtOnce = kWarp / kLanes;
  constexpr int kAhead = kRowsAtOnce > 2 ? 16 / kRowsAtOnce : 8;  // gates in flight
  const int lane = threadIdx.x % kWarp, at = lane % kLanes * kUnit;
#pragma unroll 1
  for (int base = lane / kLanes; base < count; base += kAhead * kRowsAtOnce) {
    uint4 gates[kAhead] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int row = base + a * kRowsAtOnce;
      if (gate.data && row < count)
        gates[a] = *reinterpret_cast<const uint4*>(gate.at(pairs[row].x, pairs[row].y) + at);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int row = base + a * kRowsAtOnce;
      if (row >= count) break;
      float values[kUnit];
      load_unit(rows[row] + at, kUnit, true, values);
      if (gate.data) {
        bf16 of_row[kUnit];
        memcpy(of_row, &gates[a], sizeof(of_row));
#pragma unroll
        for (int i = 0; i < kUnit; ++i) values[i] = gated<bf16>(values[i], widen(of_row[i]));
      }
      store_unit(values, kUnit, true, out.data + pairs[row].x * out.token_stride + pairs[row].y * kHeadDim + at);
    }
  }
}

// The second group's scores come after the first one's.
__device__ inline void announce_scores() { asm volatile("bar.arrive 1, %0;" ::"n"(kThreads) : "memory"); }
__device__ inline void await_scores() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

// Blocks (tile and kv head).
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kHeadDim > 128 ? 1 : 2)
    attend_tiles(TokenHeads<const bf16> q, const std::int32_t* offsets, int num_rows, Pages pages, int group, int least,
                 float factor, HeadGate<bf16> gate, TokenHeads<bf16> out) {
  constexpr int kTiles = TileMemory<kHeadDim>::kTiles;
  extern __shared__ std::byte shared[];
  std::byte* const aligned = shared + (1024 - shared_address(shared) % 1024) % 1024;
  auto& memory = *reinterpret_cast<TileMemory<kHeadDim>*>(aligned);
  const int place = place_of_block<kHeadDim>(), kv_head = place % pages.kv_heads;
  // What the plan says was there before the step's kernels, so it is read before theirs have ended. Every block waits
  // for them: the kernel behind this one relies on it.
  const QueryTile tile = find_tile(offsets, num_rows, group, least, place / pages.kv_heads);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int num_pairs = min(kTilePairs, tile.num_tokens * group - tile.first_pair);
  // Token i of the row sees `seen_by_first + i` keys; what lies past the row's pages cannot be read.
  const int seen_by_first = pages.lengths[max(tile.row, 0)] - tile.num_tokens + 1;
  const auto keys_of = [&](int pair) {
    return min(seen_by_first + (tile.first_pair + pair) / group, pages.capacity());
  };
  const int num_keys = keys_of(num_pairs - 1), num_tiles = (max(num_keys, 0) + kTileKeys - 1) / kTileKeys;
  // Where a tile's units lie, each lane one.
  const auto place_of = [&](int index) -> std::int64_t {
    const int position = index * kTileKeys + lane * kUnitKeys;
    return lane < kTileUnits && position < num_keys ? pages.at(tile.row, position, kv_head) : 0;
  };
  // A group of copies for every tile, empty past the last one.
  const auto copy = [&](int index, std::int64_t at) {
    if (index < num_tiles)
      copy_tile<kHeadDim>(memory.keys[index % kStages][0], memory.values[index % kStages][0], pages, at,
                          num_keys - index * kTileKeys);
    commit_copies();
  };

  const std::int64_t first_place = tile.row >= 0 ? place_of(0) : 0, second_place = tile.row >= 0 ? place_of(1) : 0;
  if (tile.row >= 0 && threadIdx.x < kTilePairs) {
    const int pair = tile.first_pair + (static_cast<int>(threadIdx.x) < num_pairs ? static_cast<int>(threadIdx.x) : 0);
    memory.pairs[threadIdx.x] = make_int2(tile.begin + pair / group, kv_head * group + pair % group);
  }
  await_inputs();
  if (tile.row < 0) return;
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < kTilePairs * (kHeadDim / 8); i += kThreads) {
    const int own = i / (kHeadDim / 8), chunk = i % (kHeadDim / 8);
    const int2 pair = memory.pairs[own];
    copy_16_async(chunk_at(memory.queries[chunk / kRowChunks], own, chunk % kRowChunks),
                  q.data + pair.x * q.token_stride + pair.y * kHeadDim + chunk * 8, own < num_pairs);
  }
  copy(0, first_place);  // with the queries
  copy(1, second_place);
  std::int64_t next = place_of(2);

  // This warp group's pairs, and this lane's two.
  const int warp_group = warp / (kGroupThreads / kWarp), first = warp_group * kGroupPairs;
  const int least_keys = first < num_pairs ? keys_of(first) : num_keys;
  const int own = warp * 16 + g;
  const int seen[2] = {own < num_pairs ? keys_of(own) : num_keys, own + 8 < num_pairs ? keys_of(own + 8) : num_keys};
  const std::uint64_t queries = operand_at(address_in_shared(memory.queries[0] + first * kRowBytes));
  Running running;
  float sums[kTiles][kEights][4] = {}, scores[kEights][4];
  for (int index = 0; index < num_tiles; ++index) {
    const int stage = index % kStages, first_key = index * kTileKeys;
    if (index == 0) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    show_to_products();
    __syncthreads();  // this tile is there, and the one before it is read
    if (warp_group > 0) await_scores();
    const std::uint64_t keys = operand_at(address_in_shared(memory.keys[stage][0]));
    begin_products();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k)
      multiply_group(bf16{}, scores, queries + k / 4 * kNextQueries + k % 4 * kAlongRow,
                     keys + k / 4 * kNextKeys + k % 4 * kAlongRow, k > 0);
    close_products();
    if (index > 0) {
      copy(index + 1, next);
      next = place_of(index + 2);
    }
    wait_products<0>();
    pin(scores);
    if (warp_group == 0) announce_scores();
    const int limits[2] = {seen[0] - first_key, seen[1] - first_key};
    float corrections[2];
    weigh_tile(scores, first_key + kTileKeys > least_keys, limits, factor, running, corrections);
    if (__any_sync(kAllLanes, corrections[0] != 1.0f || corrections[1] != 1.0f)) {
#pragma unroll
      for (int b = 0; b < kTiles; ++b) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          sums[b][n][0] *= corrections[0], sums[b][n][1] *= corrections[0];
          sums[b][n][2] *= corrections[1], sums[b][n][3] *= corrections[1];
        }
      }
    }
    std::uint32_t weights[kTileKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      weights[k][0] = pack_pair(scores[2 * k][0], scores[2 * k][1]);
      weights[k][1] = pack_pair(scores[2 * k][2], scores[2 * k][3]);
      weights[k][2] = pack_pair(scores[2 * k + 1][0], scores[2 * k + 1][1]);
      weights[k][3] = pack_pair(scores[2 * k + 1][2], scores[2 * k + 1][3]);
    }
    const std::uint64_t values = operand_at(address_in_shared(memory.values[stage][0]));
#pragma unroll
    for (int b = 0; b < kTiles; ++b) pin(sums[b]);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
      for (int b = 0; b < kTiles; ++b) multiply_weights(sums[b], weights[k], values + b * kNextKeys + k * kDownRows);
    }
    close_products();
    wait_products<0>();
#pragma unroll
    for (int b = 0; b < kTiles; ++b) pin(sums[b]);
  }

  wait_copies<0>();
  __syncthreads();  // all is read, and nothing on its way
  auto& rows = reinterpret_cast<Outcome<kHeadDim>*>(aligned)->rows[warp];
  static_assert(sizeof(Outcome<kHeadDim>) <= offsetof(TileMemory<kHeadDim>, pairs));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = running.total[half];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const float scale = total > 0 ? 1.0f / total : 0.0f;
#pragma unroll
    for (int b = 0; b < kTiles; ++b) {
#pragma unroll
      for (int n = 0; n < kEights; ++n)
        *reinterpret_cast<float2*>(&rows[g + 8 * half][b * kTileColumns + n * 8 + 2 * t]) =
            make_float2(sums[b][n][2 * half] * scale, sums[b][n][2 * half + 1] * scale);
    }
  }
  __syncwarp();
  write_rows<kHeadDim>(rows, memory.pairs + warp * 16, min(num_pairs - warp * 16, 16), gate, out);
}

template <int kHeadDim>
Status launch(OpContext& context, const PagedAttentionArgs& args, int least) {
  const Pages pages = pages_of(args.kv);
  const int group = static_cast<int>(args.q.dim(1)) / pages.kv_heads;
  // No more tiles than these, however the tokens are spread over the rows.
  const int tiles = args.rows.num_tokens * group / kTilePairs + args.rows.num_rows;
  constexpr std::size_t kBytes = sizeof(TileMemory<kHeadDim>) + 1024;
  allow_shared(attend_tiles<kHeadDim>, kBytes);
  launch_kernel(context, attend_tiles<kHeadDim>, dim3(tiles * pages.kv_heads), kThreads, kBytes,
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
