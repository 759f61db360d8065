// Few queries whose head shares its keys with no other, as Whisper's: there is one multiplication for each number that
// memory gives, so tensor cores have nothing to add, and keys and values go from memory to registers once.
//
// Keys are taken in units of 16, one of a warp's: eight lanes have a key, eight dimensions each. Unit u belongs to part
// u % 32, which one warp attends with a running maximum; a (token, head) is for one block or for a cluster of them,
// each with some of the parts, and the cluster's first block combines all. So neither the units of a part nor the order
// in which parts are added depends on how many blocks there are: a query's bits depend on its own row alone.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"
#include "mstar/ops/cuda_rows.cuh"

namespace mstar {
namespace {

using namespace cuda;
using bf16 = __nv_bfloat16;

constexpr int kHeadDim = kAttentionWholeHeadDim;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kParts = 32;
constexpr int kUnitKeys = 16;
constexpr int kLanesAKey = 8;  // eight dimensions each
constexpr int kGroups = kWarp / kLanesAKey;
constexpr int kLoads = kUnitKeys / kGroups;  // keys of a lane
constexpr int kMostBlocks = kParts / kWarps;
constexpr int kMultiprocessors = 132;

template <class Q, class Keys>
struct Problem {
  TokenHeads<const Q> q;
  const std::int32_t* offsets = nullptr;
  int num_rows = 0;
  Keys source;
  TokenHeads<const bf16> new_keys, new_values;  // where kNew
  int most = 0;                                 // rows of more tokens are somebody else's
  int blocks = 1;                               // of a (token, head)
  float factor = 1;
  TokenHeads<Q> out;
};

// Zeros where not `valid`, and then nothing is read. Keys are read once, so they need no room in the first cache.
__device__ inline uint4 load_once(const bf16* from, bool valid) {
  uint4 out;
  asm volatile(
      "{\n"
      ".reg .pred valid;\n"
      "setp.ne.b32 valid, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@valid ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(valid)));
  return out;
}
__device__ inline void prefetch(const bf16* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(line)));
}
__device__ inline void widen_eight(uint4 from, float (&to)[8]) {
  const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    to[2 * w] = __uint_as_float(words[w] << 16);
    to[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
  }
}

// One unit: its keys' and values' rows lie `stride` elements apart, and `count` of them are there.
struct Unit {
  const bf16* keys = nullptr;
  const bf16* values = nullptr;
  std::int64_t stride = 0;
  int count = 0;
};
struct Loaded {
  uint4 rows[kLoads];
  __device__ void load(const bf16* from, std::int64_t stride, int count) {
    const int lane = threadIdx.x % kWarp, group = lane / kLanesAKey, at = lane % kLanesAKey * 8;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int key = j * kGroups + group;
      rows[j] = load_once(from + key * stride + at, key < count);
    }
  }
};

// Of the keys of one group of lanes: each lane has eight dimensions of the sums, and all have the same maximum and
// total.
struct Running {
  float sums[8] = {};
  float largest = -INFINITY;
  float total = 0;
};

// Scores of the lane's keys, all lanes of a group alike.
__device__ inline void score(const float (&query)[8], const Loaded& keys, int count, float (&scores)[kLoads]) {
  const int group = threadIdx.x % kWarp / kLanesAKey;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    float key[8];
    widen_eight(keys.rows[j], key);
    float dot = query[0] * key[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) dot = fmaf(query[i], key[i], dot);
    scores[j] = dot;
  }
#pragma unroll
  for (int step = 1; step < kLanesAKey; step *= 2) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) scores[j] += __shfl_xor_sync(kAllLanes, scores[j], step);
  }
#pragma unroll
  for (int j = 0; j < kLoads; ++j)
    if (j * kGroups + group >= count) scores[j] = -INFINITY;
}

__device__ inline float finite(float largest) { return largest == -INFINITY ? 0.0f : largest; }

__device__ inline void add_values(const float (&scores)[kLoads], const Loaded& values, Running& running) {
  float most = running.largest;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) most = fmaxf(most, scores[j]);
  const float base = finite(most), correction = power_of_two(running.largest - base);
  running.largest = most;
  running.total *= correction;
#pragma unroll
  for (int i = 0; i < 8; ++i) running.sums[i] *= correction;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const float weight = power_of_two(scores[j] - base);
    float value[8];
    widen_eight(values.rows[j], value);
    running.total += weight;
#pragma unroll
    for (int i = 0; i < 8; ++i) running.sums[i] = fmaf(weight, value[i], running.sums[i]);
  }
}

// What the first block combines.
struct Memory {
  float sums[kParts + 1][kHeadDim];  // the last of the step's own keys
  float2 scales[kParts + 1];         // largest score (a power of two), sum of weights
  float halves[kWarps][kHeadDim];
};

__device__ inline void store_first(const void* own, float x, float y, bool remote) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(own));
  if (remote) {
    std::uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(0));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(x), "f"(y) : "memory");
  } else {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
  }
}

// The warp's part to the first block's memory; `running` begins anew.
__device__ inline void finish_part(Memory& memory, int part, Running& running, bool remote) {
  const int lane = threadIdx.x % kWarp;
  float most = fmaxf(running.largest, __shfl_xor_sync(kAllLanes, running.largest, 8));
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 16));
  const float correction = power_of_two(running.largest - finite(most));
  float total = running.total * correction;
  total += __shfl_xor_sync(kAllLanes, total, 8);
  total += __shfl_xor_sync(kAllLanes, total, 16);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& sum = running.sums[i];
    sum *= correction;
    sum += __shfl_xor_sync(kAllLanes, sum, 8);
    sum += __shfl_xor_sync(kAllLanes, sum, 16);
  }
  // Each group writes two of the eight.
  const int group = lane / kLanesAKey;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    if (pair == group)
      store_first(&memory.sums[part][lane % kLanesAKey * 8 + 2 * pair], running.sums[2 * pair],
                  running.sums[2 * pair + 1], remote);
  if (lane == 0) store_first(&memory.scales[part], most, total, remote);
  running = Running();
}

// The parts' weighted mean, by the first block; `parts` of them are there, and the step's own where kNew.
template <bool kNew, class Q>
__device__ inline void combine(Memory& memory, int parts, Q* out) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float2 none = make_float2(-INFINITY, 0);
  const float2 own = lane < parts ? memory.scales[lane] : none, last = kNew ? memory.scales[kParts] : none;
  const float base = finite(fmaxf(warp_max(own.x), last.x));
  const float weight = power_of_two(own.x - base), last_weight = power_of_two(last.x - base);
  const float total = warp_sum(own.y * weight) + last.y * last_weight;
  float x = 0, y = 0;
#pragma unroll
  for (int i = 0; i < kParts / kWarps; ++i) {
    const int part = warp * (kParts / kWarps) + i;
    const float of_part = __shfl_sync(kAllLanes, weight, part);
    if (part >= parts) continue;
    const float2 sums = *reinterpret_cast<const float2*>(&memory.sums[part][2 * lane]);
    x = fmaf(of_part, sums.x, x), y = fmaf(of_part, sums.y, y);
  }
  *reinterpret_cast<float2*>(&memory.halves[warp][2 * lane]) = make_float2(x, y);
  __syncthreads();
  if (warp != 0) return;
  x = y = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float2 sums = *reinterpret_cast<const float2*>(&memory.halves[w][2 * lane]);
    x += sums.x, y += sums.y;
  }
  if constexpr (kNew) {
    const float2 sums = *reinterpret_cast<const float2*>(&memory.sums[kParts][2 * lane]);
    x = fmaf(last_weight, sums.x, x), y = fmaf(last_weight, sums.y, y);
  }
  const float scale = total > 0 ? 1.0f / total : 0.0f;
  if constexpr (std::is_same_v<Q, float>) {
    *reinterpret_cast<float2*>(out + 2 * lane) = make_float2(x * scale, y * scale);
  } else {
    *reinterpret_cast<std::uint32_t*>(out + 2 * lane) = pack_pair(x * scale, y * scale);
  }
}

// Blocks (head and its blocks, token). kEarly: no kernel just in front writes to the keys, so they are loaded before it
// has ended. kNew: the step's own tokens come from new_keys and new_values, and are written to the source.
template <class Q, class Keys, bool kEarly, bool kNew>
__global__ void __launch_bounds__(kThreads, kNew ? 4 : 5) attend_alone(const __grid_constant__ Problem<Q, Keys> p) {
  __shared__ __align__(16) Memory memory;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = static_cast<int>(blockIdx.x) / p.blocks, rank = static_cast<int>(blockIdx.x) % p.blocks;
  const int token = blockIdx.y, num_warps = kWarps * p.blocks, own_warp = rank * kWarps + warp;
  const bool clustered = p.blocks > 1;
  if (clustered) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  const Row row = find_row(p.offsets, p.num_rows, token);
  const bool ours = row.count <= p.most;
  const int num_keys = kNew ? min(p.source.lengths[row.index] - row.count, p.source.capacity())
                            : p.source.num_keys(row.index, row.count, token - row.begin);
  const int num_units = ours ? (max(num_keys, 0) + kUnitKeys - 1) / kUnitKeys : 0;
  const auto unit_at = [&](int index) {
    const std::int64_t place = p.source.at(row.index, index * kUnitKeys, head);
    return Unit{static_cast<const bf16*>(p.source.keys) + place, static_cast<const bf16*>(p.source.values) + place,
                p.source.stride(), num_keys - index * kUnitKeys};
  };

  int part = own_warp, index = part;  // of the unit that is worked on
  Unit unit;
  Loaded keys, values;
  const auto load_first = [&] {
    if (index >= num_units) return;
    unit = unit_at(index);
    keys.load(unit.keys, unit.stride, unit.count);
    values.load(unit.values, unit.stride, unit.count);
    for (int later = index + kParts; later < num_units; later += kParts) {
      const Unit next = unit_at(later);
      const int key = lane % kUnitKeys;
      if (key < next.count) prefetch((lane < kUnitKeys ? next.keys : next.values) + key * next.stride);
    }
  };
  if constexpr (kEarly) load_first();
  await_inputs();
  if (!ours) return;
  if constexpr (!kEarly) load_first();
  float query[8];
  load_unit(p.q.data + token * p.q.token_stride + head * kHeadDim + lane % kLanesAKey * 8, 8, true, query);
#pragma unroll
  for (int i = 0; i < 8; ++i) query[i] *= p.factor;
  // The step's own tokens are for the warp that has least to do besides.
  const bool takes_new = kNew && own_warp == num_warps - 1;
  const int num_new = token - row.begin + 1;
  const auto new_unit = [&](int first) {
    const auto from = [&](const TokenHeads<const bf16>& rows) {
      return rows.data + (row.begin + first) * rows.token_stride + head * kHeadDim;
    };
    return Unit{from(p.new_keys), from(p.new_values), p.new_keys.token_stride, num_new - first};
  };
  Loaded new_keys, new_values;
  const auto load_new = [&](int first) {
    const Unit fresh = new_unit(first);
    new_keys.load(fresh.keys, fresh.stride, fresh.count);
    new_values.load(fresh.values, p.new_values.token_stride, fresh.count);
  };
  if (takes_new) load_new(0);
  if (clustered) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // the first block is there

  Running running;
  float scores[kLoads];
  while (index < num_units) {
    int next_part = part, next_index = index + kParts;
    if (next_index >= num_units) next_part += num_warps, next_index = next_part;
    const bool more = next_part < kParts && next_index < num_units;
    score(query, keys, unit.count, scores);
    if (more) {
      unit = unit_at(next_index);
      keys.load(unit.keys, unit.stride, unit.count);
    }
    add_values(scores, values, running);
    if (more) values.load(unit.values, unit.stride, unit.count);
    if (next_part != part) finish_part(memory, part, running, clustered);
    if (!more) break;
    part = next_part, index = next_index;
  }
  if (takes_new) {
    for (int first = 0; first < num_new; first += kUnitKeys) {
      if (first > 0) load_new(first);
      score(query, new_keys, num_new - first, scores);
      add_values(scores, new_values, running);
    }
    finish_part(memory, kParts, running, clustered);
    // Its own key and value, which were in the last unit.
    const int at = (num_new - 1) % kUnitKeys, position = p.source.lengths[row.index] - row.count + num_new - 1;
    if (position >= 0 && position < p.source.capacity()) {
      const std::int64_t to = p.source.at(row.index, position, head) + lane % kLanesAKey * 8;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        if (j * kGroups + lane / kLanesAKey != at) continue;
        *reinterpret_cast<uint4*>(static_cast<bf16*>(p.source.keys) + to) = new_keys.rows[j];
        *reinterpret_cast<uint4*>(static_cast<bf16*>(p.source.values) + to) = new_values.rows[j];
      }
    }
  }
  __syncwarp();
  if (clustered) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (rank != 0) return;
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
  combine<kNew>(memory, min(num_units, kParts), p.out.data + token * p.out.token_stride + head * kHeadDim);
}

// Blocks of a (token, head): as many as are resident together, if there are keys for all their warps. A power of two.
int blocks_of(std::int64_t pairs, int capacity, int resident) {
  constexpr int kUnitsABlock = 12;
  const int units = (capacity + kUnitKeys - 1) / kUnitKeys, most = (units + kUnitsABlock - 1) / kUnitsABlock;
  int blocks = kMostBlocks;
  while (blocks > 1 && (blocks > most || pairs * blocks > static_cast<std::int64_t>(resident) * kMultiprocessors))
    blocks /= 2;
  return blocks;
}

template <bool kEarly, bool kNew, class Q, class Keys>
Status launch(OpContext& context, Problem<Q, Keys> problem, int num_tokens, int heads) {
  problem.blocks = blocks_of(static_cast<std::int64_t>(num_tokens) * heads, problem.source.capacity(), kNew ? 4 : 5);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(problem.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(heads * problem.blocks), static_cast<unsigned>(num_tokens));
  config.blockDim = kThreads;
  config.stream = stream_of(context);
  config.attrs = attributes;
  config.numAttrs = problem.blocks > 1 ? 2 : 1;
  // An error stays for cuda_launch_status().
  (void)cudaLaunchKernelEx(&config, attend_alone<Q, Keys, kEarly, kNew>, problem);
  return cuda_launch_status("attention of heads that share no keys");
}

template <class Q, class Args, class Keys>
Problem<Q, Keys> problem_of(const Args& args, const Keys& keys, int most) {
  Problem<Q, Keys> problem;
  problem.q = token_heads_of<const Q>(args.q);
  problem.offsets = args.rows.offsets;
  problem.num_rows = args.rows.num_rows;
  problem.source = keys;
  problem.most = most;
  problem.factor = args.scale * 1.44269504088896341f;
  problem.out = token_heads_of<Q>(args.out);
  return problem;
}

}  // namespace

Status attention_alone_cuda(OpContext& context, const SlotAttentionArgs& args, int most) {
  return launch<true, false>(context, problem_of<bf16>(args, slots_of(args.kv), most), args.rows.num_tokens,
                             static_cast<int>(args.q.dim(1)));
}

Status attention_alone_cuda(OpContext& context, const PagedAttentionArgs& args, int most) {
  const int tokens = args.rows.num_tokens, heads = static_cast<int>(args.q.dim(1));
  const auto run = [&](auto element) {
    auto problem = problem_of<decltype(element)>(args, pages_of(args.kv), most);
    if (!args.new_keys.pointer) return launch<false, false>(context, problem, tokens, heads);
    problem.new_keys = token_heads_of<const bf16>(args.new_keys);
    problem.new_values = token_heads_of<const bf16>(args.new_values);
    return launch<true, true>(context, problem, tokens, heads);
  };
  return args.q.dtype == DType::bf16 ? run(bf16{}) : run(float{});
}

}  // namespace mstar
