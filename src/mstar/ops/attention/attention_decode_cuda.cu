// Rows of one token whose heads share keys: a cluster of eight blocks attends a row's one kv head, for up to eight of
// its query heads, and combines what its blocks found through their shared memory.
//
// Keys are taken in units of 16; unit u is for block u % 8 and its warp u / 8 % 4, which walks its units alone with a
// running maximum, while its next keys and values are on their way. Products are those of 16 keys, or 16 dimensions of
// values, with up to eight heads. Queries of f32 and all weights enter as two bf16, so that scores and weights are
// those of f32 to about 16 bits. At the end the warps' sums are added in shared memory, and block r gets dimensions [r,
// r + 1) head_dim / 8 of all eight blocks and adds them in one order. So a row's bits depend on its length alone.
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
constexpr int kTeams = kParts * kTileWarps;
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

// What the warps of a block have to add: of each its heads' largest scores (a power of two's) with their sums of
// weights, and the sums of all dimensions in the stages' memory, once nobody reads those any more.
struct Own {
  float2 scales[kTileWarps][kHeadsAtOnce];
};

// What a block gets from all, in its shared memory: of each part the sums of the block's dimensions, and the heads'
// largest scores with their sums of weights. The barrier counts what has come.
template <int kHeadDim>
struct Received {
  static constexpr int kSlice = kHeadDim / kParts;
  float2* scales_begin;
  float* sums_begin;
  unsigned barrier;
  int heads;
  __host__ __device__ static constexpr int even(int heads) { return (heads + 1) / 2 * 2; }
  __host__ __device__ static constexpr int bytes(int heads) {
    return kParts * (heads * static_cast<int>(sizeof(float2)) + even(heads) * kSlice * static_cast<int>(sizeof(float)));
  }
  __device__ Received(void* memory, int heads)
      : scales_begin(static_cast<float2*>(memory)),
        sums_begin(reinterpret_cast<float*>(scales_begin + kParts * heads)),
        barrier(address_in_shared(sums_begin + kParts * even(heads) * kSlice)),
        heads(heads) {}
  __device__ float2* scales(int part, int head) const { return scales_begin + part * heads + head; }
  __device__ float* sums(int part, int dimension, int head) const {
    return sums_begin + (part * kSlice + dimension) * even(heads) + head;
  }
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

// The B fragments of one token's queries: this lane's head is lane / 4. Nothing is left where queries are bf16.
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
};

// What a warp has of its heads; this lane's two are 2 (lane % 4) and the next.
template <int kHeadDim>
struct Running {
  float sums[kHeadDim / 16][4] = {};  // C fragments: dimensions by heads
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {};  // of the keys that this lane scores: lane / 4 of a unit, and the one 8 further on
};

// A unit's weights as B fragments: what they are to 8 bits, and what that leaves.
struct Weights {
  std::uint32_t high[2], low[2];
  float correction[2];  // of the sums before it
};

__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// Of a unit whose first `count` keys are there: at least one.
template <class Q, int kHeadDim>
__device__ inline Weights weigh_unit(const bf16* keys, const Queries<Q, kHeadDim>& queries, int count, float factor,
                                     Running<kHeadDim>& running) {
  constexpr int kChains = 2;
  const int lane = threadIdx.x % kWarp, g = lane / 4;
  const bf16* const rows = keys + lane % 16 * kTileStride<kHeadDim> + lane / 16 * 8;
  float scores[kChains][4] = {};
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[4];
    load_matrices(a, rows + k * 16);
    multiply_add(scores[k % kChains], a, queries.high[k][0], queries.high[k][1]);
    if constexpr (Queries<Q, kHeadDim>::kSplit)
      multiply_add(scores[k % kChains], a, queries.low[k][0], queries.low[k][1]);
  }
  float weights[4];  // of key g and two heads, then of key g + 8
#pragma unroll
  for (int i = 0; i < 4; ++i) weights[i] = g + i / 2 * 8 < count ? (scores[0][i] + scores[1][i]) * factor : -INFINITY;
  Weights out;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = fmaxf(weights[h], weights[2 + h]);
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    largest = fmaxf(largest, running.largest[h]);
    out.correction[h] = power_of_two(running.largest[h] - largest);
    running.largest[h] = largest;
    weights[h] = power_of_two(weights[h] - largest);
    weights[2 + h] = power_of_two(weights[2 + h] - largest);
    running.total[h] = fmaf(running.total[h], out.correction[h], weights[h] + weights[2 + h]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t high, low;
    split_pair(weights[2 * half], weights[2 * half + 1], high, low);
    out.high[half] = transposed(high);
    out.low[half] = transposed(low);
  }
  return out;
}

template <int kHeadDim>
__device__ inline void add_values(const bf16* values, const Weights& weights, Running<kHeadDim>& running) {
  const int lane = threadIdx.x % kWarp;
  const bf16* const rows = values + (lane / 16 * 8 + lane % 8) * kTileStride<kHeadDim> + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kHeadDim / 16; ++n) {
    std::uint32_t a[4];
    load_matrices_transposed(a, rows + n * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) running.sums[n][i] *= weights.correction[i % 2];
    multiply_add(running.sums[n], a, weights.high[0], weights.high[1]);
    multiply_add(running.sums[n], a, weights.low[0], weights.low[1]);
  }
}

// Of all warps: the largest score, or 0 where there was no key.
__device__ inline float base_of(const Own& own, int head) {
  float largest = -INFINITY;
#pragma unroll
  for (int warp = 0; warp < kTileWarps; ++warp) largest = fmaxf(largest, own.scales[warp][head].x);
  return largest == -INFINITY ? 0.0f : largest;
}

// The warps' sums, scaled to the block's largest scores, to where the block can add them. All threads of the block.
template <int kHeadDim>
__device__ inline void collect(Own& own, float* sums, Running<kHeadDim>& running) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) running.total[h] += __shfl_xor_sync(kAllLanes, running.total[h], step);
    if (g == 0) own.scales[warp][2 * t + h] = make_float2(running.largest[h], running.total[h]);
  }
  __syncthreads();  // the stages are read, too
  const float first = power_of_two(running.largest[0] - base_of(own, 2 * t));
  const float second = power_of_two(running.largest[1] - base_of(own, 2 * t + 1));
  float* const to = sums + (warp * kHeadDim + g) * kHeadsAtOnce + 2 * t;
#pragma unroll
  for (int n = 0; n < kHeadDim / 16; ++n) {
    const float(&from)[4] = running.sums[n];
    *reinterpret_cast<float2*>(to + n * 16 * kHeadsAtOnce) = make_float2(from[0] * first, from[1] * second);
    *reinterpret_cast<float2*>(to + (n * 16 + 8) * kHeadsAtOnce) = make_float2(from[2] * first, from[3] * second);
  }
  __syncthreads();
}

// A block's part of the row to all blocks.
template <int kHeadDim>
__device__ inline void send(const Received<kHeadDim>& received, int rank, int num_heads, const Own& own,
                            const float* sums) {
  constexpr int kSlice = Received<kHeadDim>::kSlice;
  const int pairs = Received<kHeadDim>::even(num_heads) / 2;
  for (int i = threadIdx.x; i < kHeadDim * pairs; i += kTileThreads) {
    const int dimension = i / pairs, head = i % pairs * 2, to = dimension / kSlice;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int warp = 0; warp < kTileWarps; ++warp) {
      const float2 each = *reinterpret_cast<const float2*>(sums + (warp * kHeadDim + dimension) * kHeadsAtOnce + head);
      sum.x += each.x, sum.y += each.y;
    }
    store_pair_at_rank(address_of_rank(address_in_shared(received.sums(rank, dimension % kSlice, head)), to), sum.x,
                       sum.y, address_of_rank(received.barrier, to));
  }
  static_assert(kParts * kHeadsAtOnce <= kTileThreads);
  if (static_cast<int>(threadIdx.x) >= kParts * num_heads) return;
  const int to = static_cast<int>(threadIdx.x) / num_heads, head = static_cast<int>(threadIdx.x) % num_heads;
  const float base = base_of(own, head);
  float largest = -INFINITY, total = 0;
#pragma unroll
  for (int warp = 0; warp < kTileWarps; ++warp) {
    const float2 scale = own.scales[warp][head];
    largest = fmaxf(largest, scale.x);
    total = fmaf(scale.y, power_of_two(scale.x - base), total);
  }
  store_pair_at_rank(address_of_rank(address_in_shared(received.scales(rank, head)), to), largest, total,
                     address_of_rank(received.barrier, to));
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
    total = fmaf(scale.y, weight, total);
    x = fmaf(*received.sums(part, at, head), weight, x);
    y = fmaf(*received.sums(part, at + 1, head), weight, y);
  }
  const float scale = total > 0 ? 1.0f / total : 0.0f;
  return make_float2(x * scale, y * scale);
}

// Blocks (kv head, eight of its heads, and part; token or row). A warp has kStages units' memory.
template <class Q, int kHeadDim, class Keys, int kStages>
__global__ void __launch_bounds__(kTileThreads, std::is_same_v<Q, float> ? 2 : 3)
    attend_parts(const __grid_constant__ Problem<Q, Keys> p) {
  constexpr int kSlice = Received<kHeadDim>::kSlice;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const stages = reinterpret_cast<Stage<kHeadDim>*>(shared);
  auto* const own_scales = reinterpret_cast<Own*>(stages + kTileWarps * kStages);
  static_assert(sizeof(Stage<kHeadDim>) >= kHeadDim * kHeadsAtOnce * sizeof(float));
  const Received<kHeadDim> received(own_scales + 1, min(kHeadsAtOnce, p.group));
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
  const int lane = threadIdx.x % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int team = warp * kParts + rank;
  const auto units_of = [&](int units) { return units > team ? (units - team + kTeams - 1) / kTeams : 0; };
  const int num_units = units_of((num_keys + kUnitKeys - 1) / kUnitKeys);
  const int old_units = min(num_units, units_of(p.source.num_old_keys(row.index, row.count) / kUnitKeys));
  // A group of copies for every unit's keys and one for its values, so that they can be counted; empty past the last
  // one. Each lane knows where one of 32 units lies. What of a unit is past the row's keys becomes zeros.
  std::int64_t place = 0;
  const auto copy = [&](int own, bool values) {
    if (own < num_units) {
      constexpr int kChunks = kHeadDim / 8, kRowsAtOnce = kWarp / kChunks;
      static_assert(kRowsAtOnce > 0);
      if (!values && own % kWarp == 0 && own + lane < num_units)
        place = p.source.at(row.index, ((own + lane) * kTeams + team) * kUnitKeys, kv_head);
      int key = lane / kChunks;
      asm volatile("" : "+r"(key));  // what depends on it is computed anew: registers are few
      const int left = num_keys - (own * kTeams + team) * kUnitKeys, chunk = lane % kChunks;
      const auto stride = static_cast<int>(p.source.stride());
      const std::int64_t at = __shfl_sync(kAllLanes, place, own % kWarp) + key * stride + chunk * 8;
      const bf16* from = static_cast<const bf16*>(values ? p.source.values : p.source.keys) + at;
      Stage<kHeadDim>& stage = stages[warp * kStages + own % kStages];
      bf16* const to = (values ? stage.values : stage.keys) + key * kTileStride<kHeadDim> + chunk * 8;
#pragma unroll
      for (int i = 0; i < kUnitKeys / kRowsAtOnce; ++i) {
        copy_16_async(to + i * kRowsAtOnce * kTileStride<kHeadDim>, from, key + i * kRowsAtOnce < left);
        from += kRowsAtOnce * stride;
      }
    }
    commit_copies();
  };
  int begun = 0;
#pragma unroll 1
  for (; begun < min(kStages, old_units); ++begun) copy(begun, false), copy(begun, true);
  await_inputs();
  if (!ours) return;
#pragma unroll 1
  for (; begun < kStages; ++begun) copy(begun, false), copy(begun, true);

  Queries<Q, kHeadDim> queries;
  queries.load(p.q.data + token * p.q.token_stride + head * kHeadDim, num_heads);
  Running<kHeadDim> running;
#pragma unroll 1
  for (int own = 0; own < num_units; ++own) {
    const Stage<kHeadDim>& stage = stages[warp * kStages + own % kStages];
    wait_copies<2 * kStages - 1>();
    __syncwarp();
    const Weights weights =
        weigh_unit<Q, kHeadDim>(stage.keys, queries, num_keys - (own * kTeams + team) * kUnitKeys, p.factor, running);
    __syncwarp();  // the keys are read
    copy(own + kStages, false);
    wait_copies<2 * kStages - 1>();
    __syncwarp();
    add_values<kHeadDim>(stage.values, weights, running);
    __syncwarp();
    copy(own + kStages, true);
  }
  auto* const sums = reinterpret_cast<float*>(stages);
  collect<kHeadDim>(*own_scales, sums, running);

  // A pair of dimensions a thread.
  static_assert(kHeadsAtOnce * kSlice / 2 <= kTileThreads);
  const int mine = static_cast<int>(threadIdx.x) / (kSlice / 2), at = static_cast<int>(threadIdx.x) % (kSlice / 2) * 2;
  const bool writes = mine < num_heads;
  float2 gates = make_float2(0, 0);
  if (writes && p.gate.data) load_pair(p.gate.at(token, head + mine) + rank * kSlice + at, gates.x, gates.y);
  if (threadIdx.x == 0) arrive_and_expect(received.barrier, Received<kHeadDim>::bytes(num_heads));
  wait_for_cluster();  // all blocks are there
  send<kHeadDim>(received, rank, num_heads, *own_scales, sums);
  wait_for_phase(received.barrier, 0);
  if (!writes) return;
  float2 mean = combine<kHeadDim>(received, mine, at);
  if (p.gate.data) mean = make_float2(gated<Q>(mean.x, gates.x), gated<Q>(mean.y, gates.y));
  store_pair(p.out.data + token * p.out.token_stride + (head + mine) * kHeadDim + rank * kSlice + at, mean.x, mean.y);
}

template <class Q, int kHeadDim, int kStages, class Keys>
Status launch(OpContext& context, const Problem<Q, Keys>& problem, int blocks) {
  const std::size_t bytes = kTileWarps * kStages * sizeof(Stage<kHeadDim>) + sizeof(Own) +
                            Received<kHeadDim>::bytes(std::min(kHeadsAtOnce, problem.group)) + 16;
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
// bandwidth; else three blocks share one.
constexpr int kAloneBytes = 136 * 1024, kSharedBytes = 68 * 1024;

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
  constexpr int kBytes = kTileWarps * sizeof(Stage<kHeadDim>);
  if (static_cast<std::int64_t>(blocks) * problem.num_rows <= kMultiprocessors)
    return launch<Q, kHeadDim, std::min(kAloneBytes / kBytes, 4)>(context, problem, blocks);
  return launch<Q, kHeadDim, std::min(kSharedBytes / kBytes, 2)>(context, problem, blocks);
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
