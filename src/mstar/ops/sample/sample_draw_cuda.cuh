// One row's draw: what it works with, and the two ways that need no histogram: all tokens in the order of their ids,
// and bisection.
#pragma once

#include "mstar/ops/sample/sample_cluster_cuda.cuh"

namespace mstar::cuda {

// Of distances (largest - logit) / temperature; what is further away than all bins is in the last.
inline constexpr int kBinsPerNat = 128;
inline constexpr int kBins = 4096;
inline constexpr int kBinsEach = kBins / kClusterThreads;
// A token counts e^(bin's begin - distance) times this in its bin: a block's share of tokens fills no 32 bits.
inline constexpr float kBinUnit = 65536.0f;
inline constexpr int kMaxSorted = 4096;
inline constexpr int kSortedEach = kMaxSorted / kClusterThreads;

// Where the tokens of interest are: in bins low..high, and in the bin `cut`, where the kept tokens end.
struct Plan {
  int low, high;
  int cut;                        // -1: all tokens are kept
  double before_low, before_cut;  // weights of the bins before
  double total;                   // of all tokens
  int fits;                       // 0: bisect
};

struct BinPlace {
  int bin;
  double before, through;  // weights before it, and with it
};

struct DrawMemory {
  ClusterMemory cluster;
  std::uint64_t sorted[kMaxSorted];
  union {
    std::uint64_t mine[kMaxSorted];  // keys that this block found
    double reached[kMaxSorted];      // weights of the sorted tokens through each
  };
  alignas(16) std::uint32_t bins[kBins];
  Plan plan;
  BinPlace place;
  int found;
  int num_mine, num_sorted;
  RowScan scan;
};

// What one row's draw works with.
struct Draw {
  DrawMemory& memory;
  Cluster& cluster;
  const RowPart& part;
  const SampleRowWords& row;
  float largest, inverse_temperature, floor;
  double random;

  __device__ bool is_candidate(float logit) const { return logit >= floor; }
  __device__ float bins_away(float logit) const { return (largest - logit) * inverse_temperature * kBinsPerNat; }
  __device__ static int bin_at(float away) { return static_cast<int>(fminf(away, static_cast<float>(kBins - 1))); }
  __device__ float weight(float logit) const { return expf((logit - largest) * inverse_temperature); }
  __device__ double exact_weight(float logit) const {
    return exp(static_cast<double>(logit - largest) / static_cast<double>(row.temperature));
  }
  __device__ bool counts_tokens() const { return row.top_k > 0; }
};

// ---- all tokens, in the order of their ids: the one where the running sum of weights passes the random share. Thread
// 0 of the block that has it returns its id, everyone else -1.
__device__ inline int draw_by_id(Draw& d) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int share = (d.part.count + kClusterWarps - 1) / kClusterWarps;
  const int begin = min(d.part.count, warp * share), end = min(d.part.count, begin + share);
  float own = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += kWarp) own += d.weight(d.part.logits[i]);
  const double of_warp = warp_sum(static_cast<double>(own));
  double all_warps;
  const double before_warp = __shfl_sync(kAllLanes, d.cluster.sum_before(lane == 0 ? of_warp : 0.0, all_warps), 0);
  d.cluster.exchange(static_cast<std::uint64_t>(__double_as_longlong(all_warps)), 0);
  double total = 0;
  for (int rank = 0; rank < kClusterBlocks; ++rank) total += d.cluster.heard_number(rank, 0);
  const double target = d.random * total;
  // The first block that passes the target; by rounding there may be none, then the last with weight.
  int chosen = 0;
  double reached = 0, before_block = 0;
  for (int rank = 0; rank < kClusterBlocks; ++rank) {
    const double its = d.cluster.heard_number(rank, 0);
    if (its > 0) chosen = rank, before_block = reached;
    reached += its;
    if (reached > target) break;
  }
  if (chosen != d.cluster.rank()) return -1;
  // Likewise its warp.
  if (threadIdx.x == 0) d.memory.found = 0x7fffffff, d.memory.num_mine = 0;
  __syncthreads();
  double through = before_block + before_warp;
  if (lane == 0 && of_warp > 0) {
    atomicMax(&d.memory.num_mine, warp);
    if (through + of_warp > target) atomicMin(&d.memory.found, warp);
  }
  __syncthreads();
  const bool is_chosen = warp == (d.memory.found != 0x7fffffff ? d.memory.found : d.memory.num_mine);
  __syncthreads();
  if (is_chosen) {  // and its id
    int id = 0;
    for (int first = begin; first < end; first += kWarp) {
      const double weight = first + lane < end ? static_cast<double>(d.weight(d.part.logits[first + lane])) : 0.0;
      double sum = weight;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const double other = __shfl_up_sync(kAllLanes, sum, step);
        if (lane >= step) sum += other;
      }
      const unsigned weighs = __ballot_sync(kAllLanes, weight > 0);
      const unsigned passes = __ballot_sync(kAllLanes, weight > 0 && through + sum > target);
      if (weighs != 0) id = first + 31 - __clz(static_cast<int>(weighs));
      if (passes != 0) {
        id = first + __ffs(static_cast<int>(passes)) - 1;
        break;
      }
      through += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    if (lane == 0) d.memory.found = id;
  }
  __syncthreads();
  return threadIdx.x == 0 ? d.part.begin + d.memory.found : -1;
}

// ---- by bisection

struct Measure {
  int count;
  double weight;
};
// The candidates with at least this key.
__device__ inline Measure measure(Draw& d, std::uint64_t key) {
  float weight = 0;
  int count = 0;
  for (int i = threadIdx.x; i < d.part.count; i += kClusterThreads) {
    const float logit = d.part.logits[i];
    if (!d.is_candidate(logit) || order_key(logit, d.part.begin + i) < key) continue;
    weight += d.weight(logit);
    ++count;
  }
  const double block_weight = d.cluster.sum_of_block(static_cast<double>(weight));
  const double block_count = d.cluster.sum_of_block(static_cast<double>(count));
  d.cluster.exchange(static_cast<std::uint64_t>(__double_as_longlong(block_weight)),
                     static_cast<std::uint64_t>(__double_as_longlong(block_count)));
  Measure all{0, 0};
  for (int rank = 0; rank < kClusterBlocks; ++rank) {
    all.weight += d.cluster.heard_number(rank, 0);
    all.count += static_cast<int>(d.cluster.heard_number(rank, 1));
  }
  __syncthreads();
  return all;
}
// The largest key whose tokens are enough, or 0.
template <class Enough>
__device__ inline std::uint64_t largest_key(Draw& d, Enough enough) {
  std::uint64_t key = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const std::uint64_t wanted = key | std::uint64_t{1} << bit;
    if (enough(measure(d, wanted))) key = wanted;
  }
  return key;
}
// Every thread returns the id.
__device__ inline int draw_by_bisection(Draw& d) {
  std::uint64_t kept = 0;
  if (d.row.top_k > 0) kept = largest_key(d, [&](const Measure& m) { return m.count >= d.row.top_k; });
  if (d.row.top_p < 1.0f) {
    const double wanted = static_cast<double>(d.row.top_p) * measure(d, kept).weight;
    const std::uint64_t key = largest_key(d, [&](const Measure& m) { return m.count > 0 && m.weight >= wanted; });
    kept = key > kept ? key : kept;
  }
  const double target = d.random * measure(d, kept).weight;
  const std::uint64_t key = largest_key(d, [&](const Measure& m) { return m.weight > target; });
  if (key >= kept && key != 0) return id_of_key(key);
  // By rounding no token passes the target: the last that is kept.
  const int last = measure(d, kept).count;
  return id_of_key(largest_key(d, [&](const Measure& m) { return m.count >= last; }));
}

}  // namespace mstar::cuda
