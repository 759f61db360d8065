// What the CUDA kernels of sample share: a row's largest logit and sum of powers, and its parameters.
#pragma once

#include <cstdint>

#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/sample/sample_kernels.h"

namespace mstar::cuda {

struct Best {
  float logit;
  int id;
};
// The larger logit, ties to the lower id.
__device__ inline Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}
__device__ inline Best warp_best(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    best = better(best, {__shfl_xor_sync(kAllLanes, best.logit, step), __shfl_xor_sync(kAllLanes, best.id, step)});
  return best;
}

// Some of a row's ids: the best and the sum of e^(logit - best.logit), 0 when all are masked.
struct Scan {
  Best best;
  double sum;
};
// A row is scanned by blocks of so many ids; a part's scans are [2]: of ids below tail_begin, and from it on.
inline constexpr int kScanPart = 8192;
inline int num_scan_parts(std::int64_t vocabulary) {
  return static_cast<int>((vocabulary + kScanPart - 1) / kScanPart);
}

__device__ inline Scan join(Scan a, Scan b) {
  const Best best = better(a.best, b.best);
  if (best.logit == -INFINITY) return {best, 0};
  return {best, a.sum * exp(static_cast<double>(a.best.logit - best.logit)) +
                    b.sum * exp(static_cast<double>(b.best.logit - best.logit))};
}

struct RowScan {
  Scan scan;
  int first_id;  // the ids below are masked, for the tail is preferred
};
// A whole row's, by one warp; every lane gets it.
__device__ inline RowScan scan_of_row(const Scan* parts, int num_parts, int tail_begin) {
  const int lane = threadIdx.x % kWarp;
  Scan scans[2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    Best best{-INFINITY, 0x7fffffff};
    for (int part = lane; part < num_parts; part += kWarp) best = better(best, parts[2 * part + which].best);
    best = warp_best(best);
    double sum = 0;
    if (best.logit != -INFINITY)
      for (int part = lane; part < num_parts; part += kWarp) {
        const Scan each = parts[2 * part + which];
        if (each.sum > 0) sum += each.sum * exp(static_cast<double>(each.best.logit - best.logit));
      }
    scans[which] = {best, warp_sum(sum)};
    if (tail_begin < 0) return {scans[0], 0};
  }
  const Scan head = scans[0], tail = scans[1];
  const bool prefers_tail =
      tail.best.logit != -INFINITY && static_cast<double>(tail.best.logit) + log(tail.sum) > head.best.logit;
  return prefers_tail ? RowScan{tail, tail_begin} : RowScan{join(head, tail), 0};
}

// The draws' kernel; sample_cuda.cu launches it after the scan.
Status sample_draw_cuda(OpContext& context, const SampleArgs& args, const Scan* scans);

}  // namespace mstar::cuda
