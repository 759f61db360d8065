#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kOutputsPerBlock = 8;  // one warp each

struct Fold {
  const void* weight = nullptr;  // [n, k]
  const float* gains = nullptr;
  const float* shifts = nullptr;
  const float* bias = nullptr;  // or null
  float* weighted_gains = nullptr;
  float* folded_bias = nullptr;
  int n = 0, k = 0;
};

__device__ inline float sum_of_lanes(float sum) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, lanes));
  return sum;
}

// A lane adds every 32nd number in turn, then the lanes are added by a tree.
template <class Element>
__global__ void __launch_bounds__(kOutputsPerBlock* kWarp) fold(const Fold p) {
  await_inputs();
  const int output = static_cast<int>(blockIdx.x) * kOutputsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (output >= p.n) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto* const row = static_cast<const Element*>(p.weight) + static_cast<std::int64_t>(output) * p.k;
  float gained = 0, shifted = 0;
#pragma unroll 4
  for (int i = lane; i < p.k; i += kWarp) {
    const float w = widen(row[i]);
    gained = __fmaf_rn(w, p.gains[i], gained);
    shifted = __fmaf_rn(w, p.shifts[i], shifted);
  }
  gained = sum_of_lanes(gained);
  shifted = sum_of_lanes(shifted);
  if (lane > 0) return;
  p.weighted_gains[output] = gained;
  p.folded_bias[output] = p.bias ? __fadd_rn(shifted, p.bias[output]) : shifted;
}

}  // namespace

Status fold_norm_cuda(OpContext& context, const FoldNormArgs& args) {
  const LinearWeight& weight = *args.weight;
  if (!(weight.storage() == DType::bf16) && !(weight.storage() == DType::f16))
    return internal_error("fold_norm: a weight of 16 bits is expected on CUDA");
  const Fold p{.weight = weight.rows(),
               .gains = args.gains.data<float>(),
               .shifts = args.shifts.data<float>(),
               .bias = args.bias.data<float>(),
               .weighted_gains = args.weighted_gains.data<float>(),
               .folded_bias = args.folded_bias.data<float>(),
               .n = static_cast<int>(weight.num_outputs()),
               .k = static_cast<int>(weight.num_inputs())};
  const auto blocks = static_cast<unsigned>((p.n + kOutputsPerBlock - 1) / kOutputsPerBlock);
  const auto kernel = weight.storage() == DType::f16 ? fold<__half> : fold<__nv_bfloat16>;
  launch_kernel(context, kernel, blocks, kOutputsPerBlock * kWarp, 0, p);
  return cuda_launch_status("fold_norm");
}

}  // namespace mstar
