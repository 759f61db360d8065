#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/elementwise/elementwise_kernels.h"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kThreads = 256;

dim3 grid_of(const TensorView& out) {
  return dim3(static_cast<unsigned>((out.dim(1) + kThreads - 1) / kThreads), static_cast<unsigned>(out.dim(0)));
}

__global__ void __launch_bounds__(kThreads) add_rows(Rows a, Rows b, Rows out, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) out.row(blockIdx.y)[i] = __fadd_rn(a.row(blockIdx.y)[i], b.row(blockIdx.y)[i]);
}
__global__ void __launch_bounds__(kThreads) activate_rows(Rows x, Activation activation, Rows out, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) out.row(blockIdx.y)[i] = activate_one(activation, x.row(blockIdx.y)[i]);
}
__global__ void __launch_bounds__(kThreads) silu_mul_rows(Rows gate, Rows up, Rows out, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) out.row(blockIdx.y)[i] = activate_one(Activation::silu, gate.row(blockIdx.y)[i]) * up.row(blockIdx.y)[i];
}

constexpr int kWarps = kThreads / kWarp;

// A thread reads and writes only its own elements, so that out may be x.
__global__ void __launch_bounds__(kThreads) softmax_rows(Rows x, Rows out, int n) {
  __shared__ float maxima[kWarps];
  __shared__ double sums[kWarps];
  const float* from = x.row(blockIdx.x);
  float* to = out.row(blockIdx.x);
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < n; i += kThreads) largest = fmaxf(largest, from[i]);
  largest = block_max<kWarps>(largest, maxima);
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += expf(from[i] - largest);
  const double total = block_sum<kWarps>(sum, sums);
  for (int i = threadIdx.x; i < n; i += kThreads) to[i] = static_cast<float>(expf(from[i] - largest) / total);
}

}  // namespace

Status add_cuda(OpContext& context, const AddArgs& args) {
  if (args.out.empty()) return {};
  Rows b = rows_of(args.b);
  if (args.b.dim(0) == 1) b.stride = 0;
  add_rows<<<grid_of(args.out), kThreads, 0, stream_of(context)>>>(rows_of(args.a), b, rows_of(args.out),
                                                                   static_cast<int>(args.out.dim(1)));
  return cuda_launch_status("add");
}

Status activate_cuda(OpContext& context, const ActivateArgs& args) {
  if (args.out.empty()) return {};
  activate_rows<<<grid_of(args.out), kThreads, 0, stream_of(context)>>>(
      rows_of(args.x), args.activation, rows_of(args.out), static_cast<int>(args.out.dim(1)));
  return cuda_launch_status("activate");
}

Status silu_mul_cuda(OpContext& context, const SiluMulArgs& args) {
  if (args.out.empty()) return {};
  silu_mul_rows<<<grid_of(args.out), kThreads, 0, stream_of(context)>>>(
      rows_of(args.gate), rows_of(args.up), rows_of(args.out), static_cast<int>(args.out.dim(1)));
  return cuda_launch_status("silu_mul");
}

Status softmax_cuda(OpContext& context, const SoftmaxArgs& args) {
  if (args.out.empty()) return {};
  softmax_rows<<<static_cast<unsigned>(args.out.dim(0)), kThreads, 0, stream_of(context)>>>(
      rows_of(args.x), rows_of(args.out), static_cast<int>(args.out.dim(1)));
  return cuda_launch_status("softmax");
}

}  // namespace mstar
