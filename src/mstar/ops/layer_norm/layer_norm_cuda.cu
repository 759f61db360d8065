#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/layer_norm/layer_norm_kernels.h"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kWarps = 4;

// One block a row; the sums in doubles, as on the CPU.
__global__ void __launch_bounds__(kWarps* kWarp)
    normalise(Rows x, const float* weight, const float* bias, float epsilon, Rows out, int d) {
  await_inputs();
  __shared__ double scratch[kWarps];
  const float* from = x.row(blockIdx.x);
  double sum = 0, squares = 0;
  for (int i = threadIdx.x; i < d; i += blockDim.x) sum += from[i];
  const double mean = block_sum<kWarps>(sum, scratch) / d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) squares += (from[i] - mean) * (from[i] - mean);
  const double inverse = 1.0 / sqrt(block_sum<kWarps>(squares, scratch) / d + epsilon);
  float* to = out.row(blockIdx.x);
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    const float scaled = __fmul_rn(static_cast<float>((from[i] - mean) * inverse), weight[i]);
    to[i] = bias ? __fadd_rn(scaled, bias[i]) : scaled;
  }
}

}  // namespace

Status layer_norm_cuda(OpContext& context, const LayerNormArgs& args) {
  const int m = static_cast<int>(args.x.dim(0));
  if (m == 0) return {};
  launch_kernel(context, normalise, m, kWarps * kWarp, 0, rows_of(args.x), args.weight.data<float>(),
                args.bias.data<float>(), args.epsilon, rows_of(args.out), static_cast<int>(args.x.dim(1)));
  return cuda_launch_status("layer_norm");
}

}  // namespace mstar
