// Draws. The CPU sorts the likeliest tokens, keeps as many as top_k and top_p ask for, and takes the one where the
// running sum of their weights passes a random share of it. Here a row lies in the shared memory of a cluster and is
// not sorted: a histogram over the distance from the largest logit says in which bins the cut and the token are, and
// only those bins' tokens are sorted. Where too many tokens share a bin, both are found by bisection.
#include "mstar/ops/sample/sample_draw_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = kClusterThreads;

// Counts tokens, or their weights, by bin; ends when all blocks have.
__device__ void count_bins(Draw& d) {
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) d.memory.bins[bin] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < d.part.count; i += kThreads) {
    const float logit = d.part.logits[i];
    if (!d.is_candidate(logit)) continue;
    const float away = d.bins_away(logit);
    const int bin = Draw::bin_at(away);
    const float within = away - static_cast<float>(bin);  // 0..1, more in the last bin
    atomicAdd(
        &d.memory.bins[bin],
        d.counts_tokens() ? 1u : static_cast<std::uint32_t>(__float2uint_rn(kBinUnit * expf(-within / kBinsPerNat))));
  }
  d.cluster.sync();
}

// Weights through each of this thread's bins, of all blocks.
struct BinSums {
  double through[kBinsEach];
  double before, total;
};
__device__ BinSums sum_bins(Draw& d) {
  const int first = threadIdx.x * kBinsEach;
  static_assert(kBinsEach == 4);
  BinSums out;
  double own[kBinsEach] = {};
  for (int rank = 0; rank < kClusterBlocks; ++rank) {
    const uint4 theirs = *reinterpret_cast<const uint4*>(d.cluster.at(d.memory.bins, rank) + first);
    own[0] += theirs.x, own[1] += theirs.y, own[2] += theirs.z, own[3] += theirs.w;
  }
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kBinsEach; ++j) {
    if (!d.counts_tokens() && own[j] > 0)
      own[j] *= exp(-static_cast<double>(first + j) / kBinsPerNat) / static_cast<double>(kBinUnit);
    sum += own[j];
  }
  out.before = d.cluster.sum_before(sum, out.total);
  double through = out.before;
#pragma unroll
  for (int j = 0; j < kBinsEach; ++j) out.through[j] = through += own[j];
  return out;
}

// The first bin through which the sum reaches `target`, or passes it; the last bin when none does. Called by a whole
// block.
__device__ BinPlace first_bin(Draw& d, const BinSums& sums, double target, bool passes) {
  const auto is_there = [&](double sum) { return passes ? sum > target : sum >= target; };
  if (threadIdx.x == 0) d.memory.place = {kBins - 1, 0, 0};
  __syncthreads();
  double before = sums.before;
#pragma unroll
  for (int j = 0; j < kBinsEach; ++j) {
    const int bin = static_cast<int>(threadIdx.x) * kBinsEach + j;
    if (is_there(sums.through[j]) && (bin == 0 || !is_there(before))) d.memory.place = {bin, before, sums.through[j]};
    before = sums.through[j];
  }
  __syncthreads();
  const BinPlace place = d.memory.place;
  __syncthreads();
  return place;
}

__device__ void plan_draw(Draw& d) {
  const BinSums sums = sum_bins(d);
  Plan plan{0, 0, -1, 0, 0, sums.total, 1};
  if (d.counts_tokens()) {
    const double wanted = fmin(static_cast<double>(d.row.top_k), sums.total);
    plan.cut = plan.high = first_bin(d, sums, wanted, false).bin;
    plan.fits = wanted <= kMaxSorted;
  } else {
    double least = sums.total, most = sums.total;  // of what is kept
    if (d.row.top_p < 1.0f) {
      const BinPlace cut = first_bin(d, sums, static_cast<double>(d.row.top_p) * sums.total, false);
      plan.cut = cut.bin;
      plan.before_cut = least = cut.before;
      most = cut.through;
    }
    const BinPlace low = first_bin(d, sums, d.random * least * (1 - 1e-9), true);
    plan.low = low.bin;
    plan.before_low = low.before;
    plan.high = first_bin(d, sums, d.random * most * (1 + 1e-9), true).bin;
    if (plan.cut >= 0) plan.high = min(plan.high, plan.cut);
    // The last bin holds tokens of any weight.
    plan.fits = plan.low <= plan.high && plan.high != kBins - 1 && plan.cut != kBins - 1;
  }
  if (threadIdx.x == 0) {
    d.memory.plan = plan;
    d.memory.num_sorted = 0;
  }
  __syncthreads();
}

// This block's tokens of the plan's bins go to block 0's list, in any order.
__device__ void gather(Draw& d, const Plan& plan) {
  if (threadIdx.x == 0) d.memory.num_mine = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < d.part.count; i += kThreads) {
    const float logit = d.part.logits[i];
    if (!d.is_candidate(logit)) continue;
    const int bin = Draw::bin_at(d.bins_away(logit));
    if ((bin < plan.low || bin > plan.high) && bin != plan.cut) continue;
    const int at = atomicAdd(&d.memory.num_mine, 1);
    if (at < kMaxSorted) d.memory.mine[at] = order_key(logit, d.part.begin + i);
  }
  __syncthreads();
  const int count = min(d.memory.num_mine, kMaxSorted);
  if (threadIdx.x == 0) d.memory.found = atomicAdd(d.cluster.at(&d.memory.num_sorted, 0), d.memory.num_mine);
  __syncthreads();
  const int base = d.memory.found;
  std::uint64_t* const to = d.cluster.at(d.memory.sorted, 0);
  for (int i = threadIdx.x; i < count && base + i < kMaxSorted; i += kThreads) to[base + i] = d.memory.mine[i];
}

// Largest first; `count` is at most kMaxSorted.
__device__ void sort_keys(std::uint64_t* keys, int count) {
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) keys[i] = 0;
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const std::uint64_t a = keys[low], b = keys[high];
        if ((a < b) == ((low & width) == 0)) keys[low] = b, keys[high] = a;
      }
    }
  }
  __syncthreads();
}

// The first of [begin, end) that is_there(reached), else `none`. Called by a whole block.
template <class IsThere>
__device__ int first_index(Draw& d, int begin, int end, int none, IsThere is_there) {
  if (threadIdx.x == 0) d.memory.found = 0x7fffffff;
  __syncthreads();
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads)
    if (is_there(d.memory.reached[i]) && (i == begin || !is_there(d.memory.reached[i - 1])))
      atomicMin(&d.memory.found, i);
  __syncthreads();
  const int found = d.memory.found;
  __syncthreads();
  return found == 0x7fffffff ? none : found;
}

// Of block 0: weights through each sorted token, counting those of the bins that were left out.
__device__ void sum_sorted(Draw& d, const Plan& plan, int count, int num_draw) {
  double own[kSortedEach], sum = 0, total = 0;
#pragma unroll
  for (int j = 0; j < kSortedEach; ++j) {
    const int i = static_cast<int>(threadIdx.x) * kSortedEach + j;
    own[j] = i < count ? d.exact_weight(logit_of_key(d.memory.sorted[i])) : 0.0;
    sum += own[j];
  }
  double through = d.cluster.sum_before(sum, total);
#pragma unroll
  for (int j = 0; j < kSortedEach; ++j) d.memory.reached[threadIdx.x * kSortedEach + j] = through += own[j];
  __syncthreads();
  const double of_draw = num_draw > 0 ? d.memory.reached[num_draw - 1] : 0.0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads)
    d.memory.reached[i] += i < num_draw ? plan.before_low : plan.before_cut - of_draw;
  __syncthreads();
}

// Of block 0; every thread returns the id.
__device__ int choose_sorted(Draw& d, const Plan& plan, int count) {
  sort_keys(d.memory.sorted, count);
  const auto bin_of = [&](int i) { return Draw::bin_at(d.bins_away(logit_of_key(d.memory.sorted[i]))); };
  // Bins grow along the list: where do the draw's end, and where does the cut's begin?
  if (threadIdx.x == 0) d.memory.num_mine = count, d.memory.num_sorted = count;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int bin = bin_of(i);
    if (bin > plan.high) atomicMin(&d.memory.num_mine, i);
    if (bin >= plan.cut) atomicMin(&d.memory.num_sorted, i);
  }
  __syncthreads();
  const int num_draw = d.memory.num_mine, cut_begin = d.memory.num_sorted;
  __syncthreads();
  sum_sorted(d, plan, count, num_draw);
  const double top_p = d.row.top_p;
  int last = count - 1;  // that is kept
  double kept = plan.total;
  if (d.counts_tokens()) {
    last = min(count, d.row.top_k) - 1;
    const double wanted = top_p * d.memory.reached[last];
    if (top_p < 1.0) last = first_index(d, 0, last + 1, last, [&](double sum) { return sum >= wanted; });
    kept = d.memory.reached[last];
  } else if (plan.cut >= 0) {
    const double wanted = top_p * plan.total;
    last = first_index(d, min(cut_begin, last), count, last, [&](double sum) { return sum >= wanted; });
    kept = d.memory.reached[last];
  }
  const double target = d.random * kept;
  const int none = max(0, min(num_draw - 1, last));
  const int found = first_index(d, 0, num_draw, none, [&](double sum) { return sum > target; });
  return id_of_key(d.memory.sorted[min(found, last)]);
}

// Thread 0 of block 0 returns the id, everyone else -1 or the same id.
__device__ int draw_kept(Draw& d) {
  count_bins(d);
  if (d.cluster.rank() == 0) plan_draw(d);
  d.cluster.sync();
  const Plan plan = *d.cluster.at(&d.memory.plan, 0);
  bool fits = plan.fits != 0;
  if (fits) {
    gather(d, plan);
    d.cluster.sync();
    const int count = *d.cluster.at(&d.memory.num_sorted, 0);
    fits = count > 0 && count <= kMaxSorted;
    d.cluster.sync();  // block 0 will use the count's place
    if (fits) return d.cluster.rank() == 0 ? choose_sorted(d, plan, count) : -1;
  }
  const int id = draw_by_bisection(d);
  return d.cluster.rank() == 0 ? id : -1;
}

// Clusters (row).
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads)
    draw_rows(Rows logits, int vocabulary, bool aligned, const SampleRowWords* rows, const Scan* scans, int num_parts,
              std::int32_t* tokens, float* log_probs) {
  await_inputs();
  extern __shared__ __align__(16) unsigned char shared[];
  auto& memory = *reinterpret_cast<DrawMemory*>(shared);
  const int r = blockIdx.y;
  const SampleRowWords row = rows[r];
  if (threadIdx.x < kWarp) {
    const RowScan scan = scan_of_row(scans + 2 * static_cast<std::int64_t>(r) * num_parts, num_parts, row.tail_begin);
    if (threadIdx.x == 0) memory.scan = scan;
  }
  __syncthreads();
  const Scan all = memory.scan.scan;
  const bool masked = all.best.logit == -INFINITY || all.best.id >= vocabulary;
  Cluster cluster(memory.cluster);
  if (masked || !(row.temperature > 0)) {  // all blocks alike
    if (cluster.rank() == 0 && threadIdx.x == 0) {
      tokens[r] = masked ? 0 : all.best.id;
      log_probs[r] = masked ? -INFINITY : static_cast<float>(-log(all.sum));
    }
    return;
  }
  const RowPart part(reinterpret_cast<float*>(shared + sizeof(DrawMemory)), logits.row(r), vocabulary, aligned,
                     memory.scan.first_id, cluster.rank());
  const float lowest = -3.402823466e38f;
  Draw d{memory,
         cluster,
         part,
         row,
         all.best.logit,
         fminf(__fdiv_rn(1.0f, row.temperature), 1e30f),
         row.min_p > 0 ? __fadd_rn(all.best.logit, __fmul_rn(row.temperature, row.log_min_p)) : lowest,
         philox_uniform(row.seed, row.offset)};
  const bool truncates = row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0;
  const int token = truncates ? draw_kept(d) : draw_by_id(d);
  if (threadIdx.x == 0 && token >= 0) {
    tokens[r] = token;
    log_probs[r] = static_cast<float>(static_cast<double>(logits.row(r)[token] - all.best.logit) - log(all.sum));
  }
  cluster.sync();  // nobody leaves while others read its memory
}

}  // namespace

Status cuda::sample_draw_cuda(OpContext& context, const SampleArgs& args, const Scan* scans) {
  const int num_rows = static_cast<int>(args.logits.dim(0)), vocabulary = static_cast<int>(args.logits.dim(1));
  const std::size_t bytes = sizeof(DrawMemory) + static_cast<std::size_t>(cluster_share(vocabulary)) * sizeof(float);
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(args.logits.pointer) % 16 == 0 && args.logits.stride(0) % 4 == 0;
  cudaFuncSetAttribute(draw_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  launch_kernel(context, draw_rows, dim3(kClusterBlocks, num_rows), kThreads, bytes, rows_of(args.logits), vocabulary,
                aligned, args.parameters.rows, scans, num_scan_parts(vocabulary), args.tokens.data<std::int32_t>(),
                args.log_probs.data<float>());
  return cuda_launch_status("sample");
}

}  // namespace mstar
