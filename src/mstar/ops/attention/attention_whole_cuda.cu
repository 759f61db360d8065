// Rows whose every query sees every key: an encoder's own tokens, and a prompt's over its slot. 128 queries of a head
// walk the keys in tiles of 64 with a running maximum, as in Dao, "FlashAttention-2" (2023), by products of warp
// groups: two of them have 64 queries each, read keys and values where they lie in shared memory, and hold the weights,
// rounded to bf16, in registers. Three tiles of keys are on their way or in use. Two blocks share a multiprocessor, so
// that one's exponentials pass while the other's products run.
//
// Keys go in the same tiles whatever the tile of queries: a query's bits do not depend on other rows, nor on how many
// queries come along.
#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/group_tiles_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kHeadDim = kAttentionWholeHeadDim;
constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kQueries = kGroups * kGroupPairs;
constexpr int kStages = 3;
constexpr int kTileBytes = kTileKeys * kRowBytes;  // 8 KiB
static_assert(kHeadDim == kTileColumns);

// Tiles as products read them, on 1 KiB.
struct Memory {
  std::byte queries[kQueries * kRowBytes];
  std::byte keys[kStages][kTileBytes];
  std::byte values[kStages][kTileBytes];
};
constexpr std::size_t kSharedBytes = sizeof(Memory) + 1024;

// Keys [first, first + 64) of one head, `stride` elements apart; zeros from `num_keys` on.
__device__ inline void copy_keys(std::byte* to, const bf16* head, std::int64_t stride, int first, int num_keys) {
  constexpr int kRowsAtOnce = kThreads / kRowChunks;
  const int chunk = threadIdx.x % kRowChunks;
#pragma unroll
  for (int i = 0; i < kTileKeys / kRowsAtOnce; ++i) {
    const int own = i * kRowsAtOnce + threadIdx.x / kRowChunks;
    const bool valid = first + own < num_keys;
    copy_16_async(chunk_at(to, own, chunk), head + (valid ? (first + own) * stride : 0) + chunk * 8, valid);
  }
}

// Tokens [first, first + 128) of the row that `index` is a tile of, of rows with at least `least` tokens, or row -1.
struct QueryTile {
  int row = -1;
  int begin = 0, num_tokens = 0;  // of the row
  int first = 0;
};
__device__ inline QueryTile find_tile(const std::int32_t* offsets, int num_rows, int least, int index) {
  int before = 0;
  for (int row = 0; row < num_rows; ++row) {
    const int begin = offsets[row], n = offsets[row + 1] - begin;
    const int tiles = n >= least ? (n + kQueries - 1) / kQueries : 0;
    if (index < before + tiles) return {row, begin, n, (index - before) * kQueries};
    before += tiles;
  }
  return {};
}

struct Running {
  float largest[2] = {-INFINITY, -INFINITY};  // of rows lane / 4 and 8 below, before scores are scaled
  float total[2] = {};                        // of this lane's keys
};

// Scores to weights, packed for the product with the values; the sums so far are brought to the new maximum. Keys from
// `limit` on are hidden.
__device__ inline void weigh(float (&scores)[kEights][4], float (&sums)[kEights][4], Running& running, int limit,
                             float factor, std::uint32_t (&weights)[kTileKeys / 16][4]) {
  const int t = threadIdx.x % 4;
  if (limit < kTileKeys) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (n * 8 + 2 * t + i % 2 >= limit) scores[n][i] = -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = running.largest[half];
#pragma unroll
    for (int n = 0; n < kEights; ++n) most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));  // finite: a tile has a key
    const float correction = power_of_two((running.largest[half] - most) * factor), base = most * factor;
    running.largest[half] = most;
    float total = running.total[half] * correction;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = power_of_two(fmaf(score, factor, -base));
        total += score;
        sums[n][2 * half + i] *= correction;
      }
    }
    running.total[half] = total;
  }
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    weights[k][0] = pack_pair(scores[2 * k][0], scores[2 * k][1]);
    weights[k][1] = pack_pair(scores[2 * k][2], scores[2 * k][3]);
    weights[k][2] = pack_pair(scores[2 * k + 1][0], scores[2 * k + 1][1]);
    weights[k][3] = pack_pair(scores[2 * k + 1][2], scores[2 * k + 1][3]);
  }
}

// Adds a bias of eight dimensions to a chunk of bf16 in shared memory.
__device__ inline void add_to_chunk(std::byte* chunk, const float* bias) {
  std::uint32_t words[4];
  memcpy(words, chunk, sizeof(words));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = __uint_as_float(words[i] << 16), high = __uint_as_float(words[i] & 0xffff0000u);
    words[i] = pack_pair(low + bias[2 * i], high + bias[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(chunk) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Of a head that shares its keys with no other.
struct Biases {
  const float* queries = nullptr;  // or null
  const float* values = nullptr;
};

// Blocks (tile, head); `group_heads` share a kv head.
template <class Keys>
__global__ void __launch_bounds__(kThreads, 2)
    attend_groups(TokenHeads<const bf16> q, const std::int32_t* offsets, int num_rows, Keys source, int group_heads,
                  int least, float factor, Biases biases, TokenHeads<bf16> out) {
  extern __shared__ std::byte shared[];
  auto& memory = *reinterpret_cast<Memory*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  const int head = blockIdx.y;
  await_inputs();
  const QueryTile tile = find_tile(offsets, num_rows, least, blockIdx.x);
  if (tile.row < 0) return;
  const int num_queries = min(kQueries, tile.num_tokens - tile.first);
  const int num_keys = max(source.num_keys(tile.row, tile.num_tokens, 0), 0);
  const int num_tiles = (num_keys + kTileKeys - 1) / kTileKeys;
  const std::int64_t place = source.at(tile.row, 0, head / group_heads), stride = source.stride();
  const bf16* const keys = static_cast<const bf16*>(source.keys) + place;
  const bf16* const values = static_cast<const bf16*>(source.values) + place;
  const auto copy = [&](int index) {
    if (index < num_tiles) {
      copy_keys(memory.keys[index % kStages], keys, stride, index * kTileKeys, num_keys);
      copy_keys(memory.values[index % kStages], values, stride, index * kTileKeys, num_keys);
    }
    commit_copies();
  };

  constexpr int kQueriesAtOnce = kThreads / kRowChunks;
  const int chunk = threadIdx.x % kRowChunks;
  const auto query_chunk = [&](int i) {
    return chunk_at(memory.queries, i * kQueriesAtOnce + static_cast<int>(threadIdx.x) / kRowChunks, chunk);
  };
#pragma unroll
  for (int i = 0; i < kQueries / kQueriesAtOnce; ++i) {
    const int own = i * kQueriesAtOnce + static_cast<int>(threadIdx.x) / kRowChunks;
    const bool valid = own < num_queries;
    const std::int64_t token = tile.begin + tile.first + (valid ? own : 0);
    copy_16_async(query_chunk(i), q.data + token * q.token_stride + head * kHeadDim + chunk * 8, valid);
  }
  commit_copies();
  copy(0);
  copy(1);
  wait_copies<2>();
  if (biases.queries) {
#pragma unroll
    for (int i = 0; i < kQueries / kQueriesAtOnce; ++i)
      add_to_chunk(query_chunk(i), biases.queries + head * kHeadDim + chunk * 8);
  }

  const int group = threadIdx.x / kGroupThreads;
  const std::uint64_t queries = operand_at(address_in_shared(memory.queries + group * kGroupPairs * kRowBytes));
  float sums[kEights][4] = {}, scores[kEights][4];
  std::uint32_t weights[kTileKeys / 16][4];
  Running running;
  for (int index = 0; index < num_tiles; ++index) {
    wait_copies<1>();
    show_to_products();
    __syncthreads();  // this tile is there, and the last one has been read
    copy(index + 2);
    const std::uint64_t key_operand = operand_at(address_in_shared(memory.keys[index % kStages]));
    begin_products();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k)
      multiply_group(bf16{}, scores, queries + k * kAlongRow, key_operand + k * kAlongRow, k > 0);
    close_products();
    wait_products<0>();
    pin(scores);
    weigh(scores, sums, running, num_keys - index * kTileKeys, factor, weights);
    const std::uint64_t value_operand = operand_at(address_in_shared(memory.values[index % kStages]));
    pin(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) multiply_weights(sums, weights[k], value_operand + k * kDownRows);
    close_products();
    wait_products<0>();
    pin(sums);
  }
  wait_copies<0>();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroupThreads / kWarp, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = running.total[half];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const int own = group * kGroupPairs + warp * 16 + lane / 4 + half * 8;
    if (own >= num_queries) continue;
    const float scale = total > 0 ? 1.0f / total : 0.0f;
    bf16* const to = out.data + (tile.begin + tile.first + own) * out.token_stride + head * kHeadDim + 2 * t;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      float2 added = make_float2(0, 0);
      if (biases.values) added = *reinterpret_cast<const float2*>(biases.values + head * kHeadDim + n * 8 + 2 * t);
      *reinterpret_cast<std::uint32_t*>(to + n * 8) =
          pack_pair(fmaf(sums[n][2 * half], scale, added.x), fmaf(sums[n][2 * half + 1], scale, added.y));
    }
  }
}

template <class Args, class Keys>
Status launch(OpContext& context, const Args& args, const Keys& keys, int least, const Biases& biases = {}) {
  const int heads = static_cast<int>(args.q.dim(1));
  // No more tiles than these, however the tokens are spread over the rows.
  const int tiles = args.rows.num_tokens / kQueries + args.rows.num_rows;
  allow_shared(attend_groups<Keys>, kSharedBytes);
  launch_kernel(context, attend_groups<Keys>, dim3(tiles, heads), kThreads, kSharedBytes,
                token_heads_of<const bf16>(args.q), args.rows.offsets, args.rows.num_rows, keys, heads / keys.kv_heads,
                least, args.scale * 1.44269504088896341f, biases, token_heads_of<bf16>(args.out));
  return cuda_launch_status("attention of whole rows");
}

}  // namespace

Status attention_whole_cuda(OpContext& context, const SlotAttentionArgs& args, int least) {
  return launch(context, args, slots_of(args.kv), least);
}

Status attention_whole_cuda(OpContext& context, const DenseAttentionArgs& args) {
  const DenseKeys keys{
      args.k.pointer, args.v.pointer, args.rows.offsets, args.k.stride(0), static_cast<int>(args.k.dim(1)),
      kHeadDim,       false};
  return launch(context, args, keys, 1, {args.q_bias.data<float>(), args.v_bias.data<float>()});
}

}  // namespace mstar
