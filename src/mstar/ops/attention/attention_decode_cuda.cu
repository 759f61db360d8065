// Rows of one token whose heads share keys: a cluster of eight blocks attends a row's one kv head, for up to eight of
// its query heads, and combines what its blocks found through their shared memory.
//
// Keys are taken in units of 16; unit u is for block u % 8, which walks its units with a running maximum while the next
// ones are on their way. Each of the block's four warps scores all 16 keys, so that weights need not leave registers,
// and adds a quarter of the values' dimensions. Tensor cores multiply tiles of 16 rows: rows 0..7 are the heads'
// queries rounded to bf16 and rows 8..15 what the rounding left, so that scores are those of f32 queries to about 16
// bits; the weights of the values likewise. At the end block r gets dimensions [r, r + 1) head_dim / 8 of all eight,
// and adds them in one order. So a row's bits depend on its length alone.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"
#include "mstar/ops/hopper.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kHeadsAtOnce = 8;
constexpr int kUnitKeys = 16;
constexpr int kParts = 8;  // blocks of a cluster
constexpr int kMultiprocessors = 132;

template <class Q, class Keys>
struct Problem {
  TokenHeads<const Q> q;
  const std::int32_t* offsets = nullptr;
  int num_rows = 0;
  Keys source;
  int group = 1;  // heads of a kv head
  float factor = 1;
  bool all_tokens = false;  // blocks are for tokens, however they lie; else for rows, of which those of one token count
  HeadGate<Q> gate;
  TokenHeads<Q> out;
};

template <int kHeadDim>
struct Stage {
  bf16 keys[kUnitKeys * kTileStride<kHeadDim>];
  bf16 values[kUnitKeys * kTileStride<kHeadDim>];
};

// What a block gets from all, in its shared memory: of each part and head the sums of the block's dimensions, and the
// largest score (a power of two's) with the sum of weights. The barrier counts what has come.
template <int kHeadDim>
struct Received {
  static constexpr int kSlice = kHeadDim / kParts;
  float2* scales_begin;
  float* sums_begin;
  unsigned barrier;
  int heads;
  __host__ __device__ static constexpr int bytes(int heads) {
    return kParts * heads * static_cast<int>(sizeof(float2) + kSlice * sizeof(float));
  }
  __device__ Received(void* memory, int heads)
      : scales_begin(static_cast<float2*>(memory)),
        sums_begin(reinterpret_cast<float*>(scales_begin + kParts * heads)),
        barrier(address_in_shared(sums_begin + kParts * heads * kSlice)),
        heads(heads) {}
  __device__ float2* scales(int part, int head) const { return scales_begin + part * heads + head; }
  __device__ float* sums(int part, int head) const { return sums_begin + (part * heads + head) * kSlice; }
};

__device__ inline void load_pair(const float* from, float& x, float& y) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  x = pair.x, y = pair.y;
}
__device__ inline void load_pair(const bf16* from, float& x, float& y) {
  const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
  x = pair.x, y = pair.y;
}
__device__ inline void store_pair(float* to, float x, float y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); }
__device__ inline void store_pair(bf16* to, float x, float y) {
  *reinterpret_cast<std::uint32_t*>(to) = pack_pair(x, y);
}

// The A fragments of one token's queries: this lane's head is lane / 4. Nothing is left where queries are bf16.
template <class Q, int kHeadDim>
struct Queries {
  static constexpr bool kSplit = std::is_same_v<Q, float>;
  std::uint32_t high[kHeadDim / 16][2];
  std::uint32_t low[kSplit ? kHeadDim / 16 : 1][2];
  __device__ void load(const Q* heads, int num_heads) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Q* const from = heads + g * kHeadDim + k * 16 + half * 8 + 2 * t;
        if constexpr (kSplit) {
          float x = 0, y = 0;
          if (g < num_heads) load_pair(from, x, y);
          split_pair(x, y, high[k][half], low[k][half]);
        } else {
          high[k][half] = g < num_heads ? *reinterpret_cast<const std::uint32_t*>(from) : 0u;
        }
      }
    }
  }
  __device__ void fragment(int k, std::uint32_t (&to)[4]) const {
    to[0] = high[k][0];
    to[2] = high[k][1];
    if constexpr (kSplit) {
      to[1] = low[k][0];
      to[3] = low[k][1];
    } else {
      to[1] = to[3] = 0u;
    }
  }
};

// What a warp has of its heads; this lane's head is lane / 4.
template <int kHeadDim>
struct Running {
  static constexpr int kOwn = kHeadDim / kTileWarps;  // dimensions of the warp
  float sums[kOwn / 8][4] = {};                       // C fragments; rows 8 further on are what rounding left
  float largest = -INFINITY;
  float total = 0;  // of this lane's keys
};

// One unit, of which the first `count` keys are there: at least one.
template <class Q, int kHeadDim>
__device__ inline void attend_unit(const Stage<kHeadDim>& stage, const Queries<Q, kHeadDim>& queries, int count,
                                   float factor, Running<kHeadDim>& running) {
  constexpr int kOwn = Running<kHeadDim>::kOwn, kChains = 2;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, t = lane % 4;
  float scores[2][kChains][4] = {};
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[4], b[4];
    queries.fragment(k, a);
    load_matrices(b, key_rows<kHeadDim>(stage.keys, 0, k * 16, lane));
    multiply_add(scores[0][k % kChains], a, b[0], b[1]);
    multiply_add(scores[1][k % kChains], a, b[2], b[3]);
  }
  float weights[2][2];
  float most = -INFINITY;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float score = scores[j][0][i] + scores[j][1][i];
      if constexpr (Queries<Q, kHeadDim>::kSplit) score += scores[j][0][i + 2] + scores[j][1][i + 2];
      weights[j][i] = j * 8 + 2 * t + i < count ? score * factor : -INFINITY;
      most = fmaxf(most, weights[j][i]);
    }
  }
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
  const float largest = fmaxf(running.largest, most), correction = power_of_two(running.largest - largest);
  running.largest = largest;
  running.total *= correction;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weights[j][i] = power_of_two(weights[j][i] - largest);
      running.total += weights[j][i];
    }
  }
  std::uint32_t a[4];
  split_pair(weights[0][0], weights[0][1], a[0], a[1]);
  split_pair(weights[1][0], weights[1][1], a[2], a[3]);
#pragma unroll
  for (int n = 0; n < kOwn / 8; n += 2) {
    std::uint32_t b[4];
    load_matrices_transposed(b, value_rows<kHeadDim>(stage.values, 0, warp * kOwn + n * 8, lane));
#pragma unroll
    for (int i = 0; i < 4; ++i) running.sums[n][i] *= correction, running.sums[n + 1][i] *= correction;
    multiply_add(running.sums[n], a, b[0], b[1]);
    multiply_add(running.sums[n + 1], a, b[2], b[3]);
  }
}

// A block's part of the row to all blocks.
template <int kHeadDim>
__device__ inline void send(const Received<kHeadDim>& received, int rank, int num_heads,
                            const Running<kHeadDim>& running) {
  constexpr int kOwn = Running<kHeadDim>::kOwn, kTilesARank = kOwn / 8 / (kParts / kTileWarps);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  float total = running.total;
  total += __shfl_xor_sync(kAllLanes, total, 1);
  total += __shfl_xor_sync(kAllLanes, total, 2);
  if (g >= num_heads) return;
#pragma unroll
  for (int of = 0; of < kParts / kTileWarps; ++of) {
    const int to = warp * (kParts / kTileWarps) + of;
    const unsigned sums = address_of_rank(address_in_shared(received.sums(rank, g) + 2 * t), to);
    const unsigned barrier = address_of_rank(received.barrier, to);
#pragma unroll
    for (int i = 0; i < kTilesARank; ++i) {
      const float(&own)[4] = running.sums[of * kTilesARank + i];
      store_pair_at_rank(sums + i * 8 * sizeof(float), own[0] + own[2], own[1] + own[3], barrier);
    }
    if (t == 0)
      store_pair_at_rank(address_of_rank(address_in_shared(received.scales(rank, g)), to), running.largest, total,
                         barrier);
  }
}

// The parts' weighted mean for one pair of dimensions of a head.
template <int kHeadDim>
__device__ inline float2 combine(const Received<kHeadDim>& received, int head, int at) {
  float largest = -INFINITY;
#pragma unroll
  for (int part = 0; part < kParts; ++part) largest = fmaxf(largest, received.scales(part, head)->x);
  const float base = largest == -INFINITY ? 0.0f : largest;
  float total = 0, x = 0, y = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const float2 scale = *received.scales(part, head);
    const float weight = power_of_two(scale.x - base);
    const float2 sums = *reinterpret_cast<const float2*>(received.sums(part, head) + at);
    total = fmaf(scale.y, weight, total);
    x = fmaf(sums.x, weight, x), y = fmaf(sums.y, weight, y);
  }
  const float scale = total > 0 ? 1.0f / total : 0.0f;
  return make_float2(x * scale, y * scale);
}

// Blocks (kv head, eight of its heads, and part; token or row).
template <class Q, int kHeadDim, class Keys, int kStages>
__global__ void __launch_bounds__(kTileThreads, std::is_same_v<Q, float> ? 2 : 4)
    attend_parts(const __grid_constant__ Problem<Q, Keys> p) {
  constexpr int kSlice = Received<kHeadDim>::kSlice;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const stages = reinterpret_cast<Stage<kHeadDim>*>(shared);
  const Received<kHeadDim> received(stages + kStages, min(kHeadsAtOnce, p.group));
  if (threadIdx.x == 0) {
    init_barrier(received.barrier, 1);
    publish_barriers();
  }
  arrive_with_barriers();
  const int rank = static_cast<int>(blockIdx.x) % kParts, index = static_cast<int>(blockIdx.x) / kParts;
  const int head_blocks = (p.group + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int kv_head = index / head_blocks, within = index % head_blocks * kHeadsAtOnce;
  const int head = kv_head * p.group + within, num_heads = min(kHeadsAtOnce, p.group - within);

  // What the plan says was there before the step's kernels, and so were the keys of tokens before the step's: they are
  // on their way before the kernel in front has ended. Every block waits for it: the kernel behind relies on that.
  Row row;
  if (p.all_tokens) {
    row = find_row(p.offsets, p.num_rows, blockIdx.y);
  } else {
    row.index = blockIdx.y;
    row.begin = p.offsets[row.index];
    row.count = p.offsets[row.index + 1] - row.begin;
  }
  const bool ours = p.all_tokens || row.count == 1;
  const int token = p.all_tokens ? blockIdx.y : row.begin;
  const int num_keys = ours ? max(p.source.num_keys(row.index, row.count, token - row.begin), 0) : 0;
  const auto units_of = [&](int units) { return units > rank ? (units - rank + kParts - 1) / kParts : 0; };
  const int num_units = units_of((num_keys + kUnitKeys - 1) / kUnitKeys);
  const int old_units = min(num_units, units_of(p.source.num_old_keys(row.index, row.count) / kUnitKeys));
  // A group of copies for every unit, so that they can be counted; empty past the last one. Each lane knows where one
  // of 32 units lies. What of a unit is past the row's keys becomes zeros.
  const int lane = threadIdx.x % kWarp;
  std::int64_t place = 0;
  const auto copy = [&](int own) {
    if (own < num_units) {
      constexpr int kChunks = kHeadDim / 8, kRowsAtOnce = kTileThreads / kChunks;
      if (own % kWarp == 0 && own + lane < num_units)
        place = p.source.at(row.index, ((own + lane) * kParts + rank) * kUnitKeys, kv_head);
      int key = static_cast<int>(threadIdx.x) / kChunks;
      asm volatile("" : "+r"(key));  // what depends on it is computed anew: registers are few
      const int left = num_keys - (own * kParts + rank) * kUnitKeys, chunk = threadIdx.x % kChunks;
      const auto stride = static_cast<int>(p.source.stride());
      const std::int64_t from = __shfl_sync(kAllLanes, place, own % kWarp) + key * stride + chunk * 8;
      const bf16* keys = static_cast<const bf16*>(p.source.keys) + from;
      const bf16* values = static_cast<const bf16*>(p.source.values) + from;
      const int to = key * kTileStride<kHeadDim> + chunk * 8;
      Stage<kHeadDim>& stage = stages[own % kStages];
#pragma unroll
      for (int i = 0; i < kUnitKeys / kRowsAtOnce; ++i) {
        const bool valid = key + i * kRowsAtOnce < left;
        copy_16_async(stage.keys + to + i * kRowsAtOnce * kTileStride<kHeadDim>, keys, valid);
        copy_16_async(stage.values + to + i * kRowsAtOnce * kTileStride<kHeadDim>, values, valid);
        keys += kRowsAtOnce * stride;
        values += kRowsAtOnce * stride;
      }
    }
    commit_copies();
  };
  int begun = 0;
#pragma unroll 1
  for (; begun < min(kStages, old_units); ++begun) copy(begun);
  await_inputs();
  if (!ours) return;
#pragma unroll 1
  for (; begun < kStages; ++begun) copy(begun);

  Queries<Q, kHeadDim> queries;
  queries.load(p.q.data + token * p.q.token_stride + head * kHeadDim, num_heads);
  Running<kHeadDim> running;
#pragma unroll 1
  for (int own = 0; own < num_units; ++own) {
    wait_copies<kStages - 1>();
    __syncthreads();
    attend_unit<Q, kHeadDim>(stages[own % kStages], queries, num_keys - (own * kParts + rank) * kUnitKeys, p.factor,
                             running);
    __syncthreads();  // the unit is read
    copy(own + kStages);
  }

  // A pair of dimensions a thread.
  static_assert(kHeadsAtOnce * kSlice / 2 <= kTileThreads);
  const int mine = static_cast<int>(threadIdx.x) / (kSlice / 2), at = static_cast<int>(threadIdx.x) % (kSlice / 2) * 2;
  const bool writes = mine < num_heads;
  float2 gates = make_float2(0, 0);
  if (writes && p.gate.data) load_pair(p.gate.at(token, head + mine) + rank * kSlice + at, gates.x, gates.y);
  if (threadIdx.x == 0) arrive_and_expect(received.barrier, Received<kHeadDim>::bytes(num_heads));
  wait_for_cluster();  // all blocks are there
  send<kHeadDim>(received, rank, num_heads, running);
  wait_for_phase(received.barrier, 0);
  if (!writes) return;
  float2 mean = combine<kHeadDim>(received, mine, at);
  if (p.gate.data) mean = make_float2(gated<Q>(mean.x, gates.x), gated<Q>(mean.y, gates.y));
  store_pair(p.out.data + token * p.out.token_stride + (head + mine) * kHeadDim + rank * kSlice + at, mean.x, mean.y);
}

template <class Q, int kHeadDim, int kStages, class Keys>
Status launch(OpContext& context, const Problem<Q, Keys>& problem, int blocks) {
  const std::size_t bytes =
      kStages * sizeof(Stage<kHeadDim>) + Received<kHeadDim>::bytes(std::min(kHeadsAtOnce, problem.group)) + 16;
  const auto kernel = attend_parts<Q, kHeadDim, Keys, kStages>;
  allow_shared(kernel, bytes);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kParts, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(problem.num_rows));
  config.blockDim = kTileThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream_of(context);
  config.attrs = attributes;
  config.numAttrs = 2;
  // An error stays for cuda_launch_status().
  (void)cudaLaunchKernelEx(&config, kernel, problem);
  return cuda_launch_status("attention of single tokens");
}

// Stages of so many bytes: where each block has a multiprocessor for itself, enough of them are under way for its
// bandwidth; else four blocks of up to four heads share one.
constexpr int kAloneBytes = 136 * 1024, kSharedBytes = 50 * 1024;

template <class Q, int kHeadDim, class Args, class Keys>
Status launch(OpContext& context, const Args& args, const Keys& keys, bool all_tokens, const TensorView& gate) {
  Problem<Q, Keys> problem;
  problem.q = token_heads_of<const Q>(args.q);
  problem.offsets = args.rows.offsets;
  problem.num_rows = args.rows.num_rows;
  problem.source = keys;
  problem.group = static_cast<int>(args.q.dim(1)) / keys.kv_heads;
  problem.factor = args.scale * 1.44269504088896341f;
  problem.all_tokens = all_tokens;
  problem.gate = head_gate_of<Q>(gate);
  problem.out = token_heads_of<Q>(args.out);
  const int blocks = keys.kv_heads * ((problem.group + kHeadsAtOnce - 1) / kHeadsAtOnce) * kParts;
  constexpr int kBytes = sizeof(Stage<kHeadDim>);
  if (static_cast<std::int64_t>(blocks) * problem.num_rows <= kMultiprocessors)
    return launch<Q, kHeadDim, kAloneBytes / kBytes>(context, problem, blocks);
  return launch<Q, kHeadDim, std::min(kSharedBytes / kBytes, 6)>(context, problem, blocks);
}

}  // namespace

Status attention_decode_cuda(OpContext& context, const PagedAttentionArgs& args, bool all_tokens) {
  return with_tile_shape(args.q.dtype, args.kv.keys.dim(3), [&](auto element, auto head_dim) {
    return launch<decltype(element), decltype(head_dim)::value>(context, args, pages_of(args.kv), all_tokens,
                                                                args.gate);
  });
}

Status attention_decode_cuda(OpContext& context, const SlotAttentionArgs& args, bool all_tokens) {
  return launch<bf16, kAttentionWholeHeadDim>(context, args, slots_of(args.kv), all_tokens, {});
}

}  // namespace mstar
