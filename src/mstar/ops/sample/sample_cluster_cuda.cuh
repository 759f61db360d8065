// A row of logits held in the shared memory of a cluster of eight blocks, each an eighth: what draws and reports of
// log-probabilities share. Every thread of every block calls each function in the same order.
#pragma once

#include <cooperative_groups.h>

#include "mstar/ops/sample/sample_rows_cuda.cuh"

namespace mstar::cuda {

inline constexpr int kClusterBlocks = 8;
inline constexpr int kClusterThreads = 1024;
inline constexpr int kClusterWarps = kClusterThreads / kWarp;

// Values of one block's part of the row; multiples of four, so that every part begins where the row allows wide loads.
inline __host__ __device__ int cluster_share(int vocabulary) {
  return ((vocabulary + kClusterBlocks - 1) / kClusterBlocks + 3) / 4 * 4;
}

// Larger logits and, of equal logits, lower ids have larger keys.
__device__ inline std::uint64_t order_key(float logit, int id) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 is 0
  const std::uint32_t order = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return static_cast<std::uint64_t>(order) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}
__device__ inline int id_of_key(std::uint64_t key) {
  return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(key));
}
__device__ inline float logit_of_key(std::uint64_t key) {
  const auto order = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float(order >> 31 ? order ^ 0x80000000u : ~order);
}

struct alignas(16) ClusterMemory {
  double sums[kClusterWarps];
  std::uint64_t largest[kClusterWarps];
  std::uint64_t sent[2][2];  // what this block says, in turns
  std::uint64_t heard[kClusterBlocks][2];
};

class Cluster {
 public:
  __device__ explicit Cluster(ClusterMemory& memory)
      : memory_(memory), cluster_(cooperative_groups::this_cluster()), rank_(static_cast<int>(cluster_.block_rank())) {}
  __device__ int rank() const { return rank_; }
  __device__ void sync() const { cluster_.sync(); }
  template <class T>
  __device__ T* at(T* mine, int rank) const {
    return cluster_.map_shared_rank(mine, rank);
  }

  // Each block says two words (its thread 0's); every block then has them all in heard(), until the next call.
  __device__ void exchange(std::uint64_t first, std::uint64_t second) {
    turn_ ^= 1;
    if (threadIdx.x == 0) {
      memory_.sent[turn_][0] = first;
      memory_.sent[turn_][1] = second;
    }
    // A block that says something again in this turn has passed the sync between, and so all have read.
    cluster_.sync();
    if (threadIdx.x < 2 * kClusterBlocks)
      memory_.heard[threadIdx.x / 2][threadIdx.x % 2] =
          *cluster_.map_shared_rank(&memory_.sent[turn_][threadIdx.x % 2], static_cast<int>(threadIdx.x / 2));
    __syncthreads();
  }
  __device__ std::uint64_t heard(int rank, int word) const { return memory_.heard[rank][word]; }
  __device__ double heard_number(int rank, int word) const {
    return __longlong_as_double(static_cast<long long>(memory_.heard[rank][word]));
  }

  // Of the block; fixed order.
  __device__ double sum_of_block(double value) { return block_sum<kClusterWarps>(value, memory_.sums); }
  __device__ std::uint64_t largest_of_block(std::uint64_t value) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const std::uint64_t other = __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), step);
      value = value > other ? value : other;
    }
    if (threadIdx.x % kWarp == 0) memory_.largest[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = memory_.largest[0];
    for (int i = 1; i < kClusterWarps; ++i) value = value > memory_.largest[i] ? value : memory_.largest[i];
    __syncthreads();
    return value;
  }
  // The sum of the values of the threads before this one, and of all threads.
  __device__ double sum_before(double value, double& total) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    double through = value;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const double other = __shfl_up_sync(kAllLanes, through, step);
      if (lane >= step) through += other;
    }
    if (lane == kWarp - 1) memory_.sums[warp] = through;
    __syncthreads();
    double before = 0;
    total = 0;
    for (int w = 0; w < kClusterWarps; ++w) {
      if (w == warp) before = total;
      total += memory_.sums[w];
    }
    __syncthreads();
    const double lane_before = __shfl_up_sync(kAllLanes, through, 1);
    return before + (lane == 0 ? 0.0 : lane_before);
  }

 private:
  ClusterMemory& memory_;
  cooperative_groups::cluster_group cluster_;
  int rank_ = 0;
  int turn_ = 0;
};

// This block's part of a row: ids [begin, begin + count). Those below first_id are masked. Ends with a barrier. `to`
// lies on 16 bytes.
struct RowPart {
  float* logits;
  int begin, count;
  __device__ RowPart(float* to, const float* row, int vocabulary, bool aligned, int first_id, int rank) : logits(to) {
    const int share = cluster_share(vocabulary);
    begin = min(vocabulary, rank * share);
    count = min(vocabulary - begin, share);
    const int wide = aligned ? count / 4 * 4 : 0;
    // All on their way at once.
    for (int i = 4 * static_cast<int>(threadIdx.x); i < wide; i += 4 * kClusterThreads)
      copy_to_shared(to + i, row + begin + i);
    for (int i = wide + static_cast<int>(threadIdx.x); i < count; i += kClusterThreads) to[i] = row[begin + i];
    await_copies();
    __syncthreads();
    if (begin >= first_id) return;
    for (int i = threadIdx.x; i < min(count, first_id - begin); i += kClusterThreads) to[i] = -INFINITY;
    __syncthreads();
  }

 private:
  // 16 bytes in the background.
  __device__ static void copy_to_shared(float* to, const float* from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
        "l"(from)
        : "memory");
  }
  __device__ static void await_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }
};

}  // namespace mstar::cuda
