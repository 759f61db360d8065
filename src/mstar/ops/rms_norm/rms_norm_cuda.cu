#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/rms_norm/rms_norm_kernels.h"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kWarps = 4;

// One block a row; the sum in doubles, as on the CPU.
__global__ void __launch_bounds__(kWarps* kWarp)
    normalise(Rows x, const float* weight, float epsilon, float weight_offset, Rows out, int d) {
  __shared__ double scratch[kWarps];
  const float* from = x.row(blockIdx.x);
  double squares = 0;
  for (int i = threadIdx.x; i < d; i += blockDim.x) squares += static_cast<double>(from[i]) * from[i];
  const auto inverse = static_cast<float>(1.0 / sqrt(block_sum<kWarps>(squares, scratch) / d + epsilon));
  float* to = out.row(blockIdx.x);
  for (int i = threadIdx.x; i < d; i += blockDim.x)
    to[i] = __fmul_rn(__fmul_rn(from[i], inverse), __fadd_rn(weight[i], weight_offset));
}

}  // namespace

Status rms_norm_cuda(OpContext& context, const RmsNormArgs& args) {
  const int m = static_cast<int>(args.x.dim(0));
  if (m == 0) return {};
  normalise<<<m, kWarps * kWarp, 0, stream_of(context)>>>(rows_of(args.x), args.weight.data<float>(), args.epsilon,
                                                          args.weight_offset, rows_of(args.out),
                                                          static_cast<int>(args.x.dim(1)));
  return cuda_launch_status("rms_norm");
}

}  // namespace mstar
