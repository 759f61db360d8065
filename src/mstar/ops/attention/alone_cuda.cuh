// How warps attend and combine where no two heads share keys (attention_alone_cuda.cu): keys and values in registers,
// eight lanes a key, eight dimensions a lane.
#pragma once

#include <cstdint>
#include <type_traits>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/tile_cuda.cuh"
#include "mstar/ops/hopper.cuh"

namespace mstar::cuda::alone {

using bf16 = __nv_bfloat16;

inline constexpr int kHeadDim = kAttentionWholeHeadDim;
inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kParts = 32;
inline constexpr int kUnitKeys = 16;
inline constexpr int kLanesAKey = 8;  // eight dimensions each
inline constexpr int kGroups = kWarp / kLanesAKey;
inline constexpr int kLoads = kUnitKeys / kGroups;  // keys of a lane

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
  // What the same lane has put aside.
  __device__ void take(const uint4* held) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) rows[j] = held[j * kWarp + lane];
  }
  __device__ void load(const bf16* from, std::int64_t stride, int count) {
    const int lane = threadIdx.x % kWarp, group = lane / kLanesAKey, at = lane % kLanesAKey * 8;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int key = j * kGroups + group;
      rows[j] = load_once(from + key * stride + at, key < count);
    }
  }
};

// The same rows into shared memory, for Loaded::take() of the same lane once its copies have come.
__device__ inline void hold(uint4* held, const bf16* from, std::int64_t stride, int count) {
  const int lane = threadIdx.x % kWarp, group = lane / kLanesAKey, at = lane % kLanesAKey * 8;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int key = j * kGroups + group;
    copy_16_async(held + j * kWarp + lane, from + (key < count ? key * stride : 0) + at, key < count);
  }
}

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

// What the first block combines. The barrier counts what has come from a cluster.
struct Memory {
  float sums[kParts + 1][kHeadDim];  // the last of the step's own keys
  float2 scales[kParts + 1];         // largest score (a power of two), sum of weights
  float halves[kWarps][kHeadDim];
  std::uint64_t barrier;
  static constexpr int kPartBytes = kHeadDim * static_cast<int>(sizeof(float)) + static_cast<int>(sizeof(float2));
};

__device__ inline void store_first(const Memory& memory, const void* own, float x, float y, bool remote) {
  const unsigned at = address_in_shared(own);
  if (remote) {
    store_pair_at_rank(address_of_rank(at, 0), x, y, address_of_rank(address_in_shared(&memory.barrier), 0));
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
      store_first(memory, &memory.sums[part][lane % kLanesAKey * 8 + 2 * pair], running.sums[2 * pair],
                  running.sums[2 * pair + 1], remote);
  if (lane == 0) store_first(memory, &memory.scales[part], most, total, remote);
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

}  // namespace mstar::cuda::alone
