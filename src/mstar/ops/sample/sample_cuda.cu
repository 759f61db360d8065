#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/sample/sample_kernels.h"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct Best {
  float logit;
  int id;
};
// The larger logit, ties to the lower id.
__device__ Best better(Best a, Best b) { return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a; }

// One block a row.
__global__ void __launch_bounds__(kThreads) pick_largest(Rows logits, int n, std::int32_t* tokens, float* log_probs) {
  __shared__ Best bests[kWarps];
  __shared__ double sums[kWarps];
  const float* from = logits.row(blockIdx.x);
  Best best{-INFINITY, n};
  for (int i = threadIdx.x; i < n; i += kThreads) best = better(best, {from[i], i});
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    best = better(best, {__shfl_xor_sync(kAllLanes, best.logit, step), __shfl_xor_sync(kAllLanes, best.id, step)});
  if (threadIdx.x % kWarp == 0) bests[threadIdx.x / kWarp] = best;
  __syncthreads();
  best = bests[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) best = better(best, bests[i]);
  const bool all_masked = best.logit == -INFINITY;
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += all_masked ? 0.0f : expf(from[i] - best.logit);
  const double total = block_sum<kWarps>(sum, sums);
  if (threadIdx.x != 0) return;
  tokens[blockIdx.x] = all_masked || best.id >= n ? 0 : best.id;
  log_probs[blockIdx.x] = all_masked ? -INFINITY : static_cast<float>(-log(total));
}

}  // namespace

// The rest waits for parameters that live on the device.
bool sample_cuda_fits(const OpContext&, const SampleArgs& args) {
  for (const SampleRow& row : args.rows)
    if (row.temperature > 0 || row.repetition_penalty != 1.0f || row.tail_begin >= 0 || !row.suppress.empty() ||
        !row.more_suppress.empty() || !row.suppress_ranges.empty() || !row.biases.empty())
      return false;
  return true;
}

Status sample_cuda(OpContext& context, const SampleArgs& args) {
  const int num_rows = static_cast<int>(args.logits.dim(0));
  if (num_rows == 0) return {};
  pick_largest<<<num_rows, kThreads, 0, stream_of(context)>>>(
      rows_of(args.logits), static_cast<int>(args.logits.dim(1)), args.tokens.data<std::int32_t>(),
      args.log_probs.data<float>());
  return cuda_launch_status("sample");
}

}  // namespace mstar
