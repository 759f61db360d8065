// Rows whose every query sees every key: an encoder's own tokens, and a prompt's over its slot. Tiles of 128 (token,
// head) pairs that share a kv head walk the keys in tiles of 64 with a running maximum, as in Dao, "FlashAttention-2"
// (2023): a warp has 32 pairs, so that each fragment of keys and values that it loads is multiplied twice. Products on
// tensor cores from bf16, sums in f32; weights are rounded to bf16 before they meet the values.
//
// Keys go in the same tiles whatever the tile of queries: a query's bits do not depend on other rows, nor on how many
// queries come along.
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kHeadDim = kAttentionWholeHeadDim;
constexpr int kStride = kTileStride<kHeadDim>;
constexpr int kSets = 2;                             // of 16 pairs, of one warp
constexpr int kPairs = kTileWarps * kSets * 16;      // of a block
constexpr int kChunks = kHeadDim / 8;                // of 16 bytes in a row
constexpr int kRowsAtOnce = kTileThreads / kChunks;  // that the block's threads copy together
constexpr int kKeyTiles = kTileKeys / 8;

struct Memory {
  bf16 queries[kPairs * kStride];
  bf16 keys[2][kTileKeys * kStride];
  bf16 values[2][kTileKeys * kStride];
};

// A row's pairs are numbered token by token: pair p is token p / group, head p % group of the kv head.
struct QueryTile {
  int row = -1;
  int begin = 0, num_tokens = 0;  // of the row
  int first_pair = 0;
};

// Tile `index` of all rows that have at least `least` tokens.
__device__ inline QueryTile find_tile(const std::int32_t* offsets, int num_rows, int group, int least, int index) {
  int before = 0;
  for (int row = 0; row < num_rows; ++row) {
    const int begin = offsets[row], n = offsets[row + 1] - begin;
    const int tiles = n >= least ? (n * group + kPairs - 1) / kPairs : 0;
    if (index < before + tiles) return {row, begin, n, (index - before) * kPairs};
    before += tiles;
  }
  return {};
}

// Keys [first, first + 64) of one head, `stride` elements apart; zeros from `num_keys` on.
__device__ inline void copy_keys(bf16* to, const bf16* head, std::int64_t stride, int first, int num_keys) {
  const int chunk = threadIdx.x % kChunks;
#pragma unroll
  for (int i = 0; i < kTileKeys / kRowsAtOnce; ++i) {
    const int own = i * kRowsAtOnce + threadIdx.x / kChunks;
    const bool valid = first + own < num_keys;
    copy_16_async(to + own * kStride + chunk * 8, head + (valid ? (first + own) * stride : 0) + chunk * 8, valid);
  }
}

// Of 16 pairs: this lane's parts belong to rows lane / 4 and lane / 4 + 8.
struct PairSet {
  std::uint32_t queries[kHeadDim / 16][4];
  float sums[kHeadDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};  // of the scores before they are scaled
  float total[2] = {};                        // of this lane's keys
};

// Scores to weights; the sums so far are brought to the new maximum. Keys from `limit` on are hidden.
__device__ inline void weigh(float (&scores)[kKeyTiles][4], PairSet& set, int limit, float factor) {
  const int t = threadIdx.x % 4;
  if (limit < kTileKeys) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (n * 8 + 2 * t + i % 2 >= limit) scores[n][i] = -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = set.largest[half];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));  // finite: a tile has a key
    const float correction = power_of_two((set.largest[half] - most) * factor), base = most * factor;
    set.largest[half] = most;
    float total = set.total[half] * correction;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = power_of_two(fmaf(score, factor, -base));
        total += score;
      }
    }
    set.total[half] = total;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) set.sums[n][2 * half] *= correction, set.sums[n][2 * half + 1] *= correction;
  }
}

// One tile of keys for one warp's pairs.
__device__ inline void attend_tile(PairSet (&sets)[kSets], const bf16* keys, const bf16* values, int limit,
                                   float factor) {
  const int lane = threadIdx.x % kWarp;
  float scores[kSets][kKeyTiles][4];
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[s][n][i] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, key_rows<kHeadDim>(keys, n * 8, k * 16, lane));
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        multiply_add(scores[s][n], sets[s].queries[k], b[0], b[1]);
        multiply_add(scores[s][n + 1], sets[s].queries[k], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kSets; ++s) weigh(scores[s], sets[s], limit, factor);
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    std::uint32_t a[kSets][4];
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      a[s][0] = pack_pair(scores[s][2 * k][0], scores[s][2 * k][1]);
      a[s][1] = pack_pair(scores[s][2 * k][2], scores[s][2 * k][3]);
      a[s][2] = pack_pair(scores[s][2 * k + 1][0], scores[s][2 * k + 1][1]);
      a[s][3] = pack_pair(scores[s][2 * k + 1][2], scores[s][2 * k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, value_rows<kHeadDim>(values, k * 16, n * 8, lane));
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        multiply_add(sets[s].sums[n], a[s], b[0], b[1]);
        multiply_add(sets[s].sums[n + 1], a[s], b[2], b[3]);
      }
    }
  }
}

// Of a head that shares its keys with no other; or nulls.
struct Biases {
  const float* queries = nullptr;
  const float* values = nullptr;
};

// Adds the bias of dimensions 2t, 2t + 1 and the same 8 further on to a fragment of 16 dimensions.
__device__ inline void add_bias(std::uint32_t (&queries)[4], const float* bias) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    __nv_bfloat162 pair;
    memcpy(&pair, &queries[i], sizeof(pair));
    const float2 value = __bfloat1622float2(pair), added = *reinterpret_cast<const float2*>(bias + i / 2 * 8 + 2 * t);
    queries[i] = pack_pair(value.x + added.x, value.y + added.y);
  }
}

// Blocks (tile, kv head).
template <class Keys>
__global__ void __launch_bounds__(kTileThreads, 2)
    attend_whole(TokenHeads<const bf16> q, const std::int32_t* offsets, int num_rows, Keys source, int group, int least,
                 float factor, Biases biases, TokenHeads<bf16> out) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& memory = *reinterpret_cast<Memory*>(shared);
  const int kv_head = blockIdx.y;
  await_inputs();
  const QueryTile tile = find_tile(offsets, num_rows, group, least, blockIdx.x);
  if (tile.row < 0) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int num_pairs = min(kPairs, tile.num_tokens * group - tile.first_pair);
  const int num_keys = max(source.num_keys(tile.row, tile.num_tokens, 0), 0);
  const int num_tiles = (num_keys + kTileKeys - 1) / kTileKeys;
  const std::int64_t head = source.at(tile.row, 0, kv_head), stride = source.stride();
  const bf16* const keys = static_cast<const bf16*>(source.keys) + head;
  const bf16* const values = static_cast<const bf16*>(source.values) + head;
  const auto copy = [&](int index) {
    copy_keys(memory.keys[index % 2], keys, stride, index * kTileKeys, num_keys);
    copy_keys(memory.values[index % 2], values, stride, index * kTileKeys, num_keys);
  };

  for (int i = threadIdx.x; i < kPairs * kChunks; i += kTileThreads) {
    const int own = i / kChunks, chunk = i % kChunks, pair = tile.first_pair + own;
    const bf16* from = q.data;
    if (own < num_pairs)
      from += (tile.begin + pair / group) * q.token_stride + (kv_head * group + pair % group) * kHeadDim + chunk * 8;
    copy_16_async(memory.queries + own * kStride + chunk * 8, from, own < num_pairs);
  }
  commit_copies();
  if (num_tiles > 0) copy(0);
  commit_copies();
  wait_copies<1>();
  __syncthreads();
  PairSet sets[kSets];
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const bf16* const query = memory.queries + ((warp * kSets + s) * 16 + lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      load_matrices(sets[s].queries[k], query + k * 16);
      if (biases.queries) add_bias(sets[s].queries[k], biases.queries + kv_head * kHeadDim + k * 16);
    }
  }
  for (int index = 0; index < num_tiles; ++index) {
    if (index + 1 < num_tiles) copy(index + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();  // this tile is there
    attend_tile(sets, memory.keys[index % 2], memory.values[index % 2], num_keys - index * kTileKeys, factor);
    __syncthreads();  // and read
  }
  wait_copies<0>();

#pragma unroll
  for (int s = 0; s < kSets; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = (warp * kSets + s) * 16 + g + half * 8;
      float total = sets[s].total[half];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      if (own >= num_pairs) continue;
      const float scale = total > 0 ? 1.0f / total : 0.0f;
      const int pair = tile.first_pair + own;
      bf16* const to = out.data + (tile.begin + pair / group) * out.token_stride +
                       (kv_head * group + pair % group) * kHeadDim + 2 * t;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        float2 added = make_float2(0, 0);
        if (biases.values) added = *reinterpret_cast<const float2*>(biases.values + kv_head * kHeadDim + n * 8 + 2 * t);
        *reinterpret_cast<std::uint32_t*>(to + n * 8) = pack_pair(fmaf(sets[s].sums[n][2 * half], scale, added.x),
                                                                  fmaf(sets[s].sums[n][2 * half + 1], scale, added.y));
      }
    }
  }
}

template <class Args, class Keys>
Status launch(OpContext& context, const Args& args, const Keys& keys, int least, const Biases& biases = {}) {
  const int group = static_cast<int>(args.q.dim(1)) / keys.kv_heads;
  // No more tiles than these, however the tokens are spread over the rows.
  const int tiles = args.rows.num_tokens * group / kPairs + args.rows.num_rows;
  allow_shared(attend_whole<Keys>, sizeof(Memory));
  launch_kernel(context, attend_whole<Keys>, dim3(tiles, keys.kv_heads), kTileThreads, sizeof(Memory),
                token_heads_of<const bf16>(args.q), args.rows.offsets, args.rows.num_rows, keys, group, least,
                args.scale * 1.44269504088896341f, biases, token_heads_of<bf16>(args.out));
  return cuda_launch_status("attention of whole rows");
}

}  // namespace

Status attention_whole_cuda(OpContext& context, const SlotAttentionArgs& args, int least) {
  return launch(context, args, slots_of(args.kv), least);
}

Status attention_whole_cuda(OpContext& context, const DenseAttentionArgs& args) {
  const DenseKeys keys{args.k.pointer,
                       args.v.pointer,
                       args.rows.offsets,
                       args.k.stride(0),
                       static_cast<int>(args.k.dim(1)),
                       static_cast<int>(args.k.dim(2)),
                       false};
  return launch(context, args, keys, 1, {args.q_bias.data<float>(), args.v_bias.data<float>()});
}

}  // namespace mstar
