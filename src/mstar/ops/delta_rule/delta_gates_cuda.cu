#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/delta_rule/delta_rule_kernels.h"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kThreads = 128;

template <class T>
__device__ inline void gate_one(const HeadRows<const T>& a, const HeadRows<const T>& b, const float* rate,
                                const float* dt_bias, float* decay, float* beta, int heads, unsigned index) {
  const int token = static_cast<int>(index / heads), head = static_cast<int>(index % heads);
  const float bias = dt_bias[head], speed = rate[head];
  // Past the L1 cache: beside another kernel nothing says that it holds no older numbers.
  const float x = widen(__ldcg(a.row(token) + head)) + bias;
  const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
  decay[index] = expf(-speed * softplus);
  beta[index] = 1.0f / (1.0f + expf(-widen(__ldcg(b.row(token) + head))));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gates(HeadRows<const T> a, HeadRows<const T> b, const float* rate, const float* dt_bias, float* decay, float* beta,
          int heads, unsigned count, bool beside_previous) {
  if (beside_previous) {
    start_next();
  } else {
    await_inputs();
  }
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index < count) gate_one(a, b, rate, dt_bias, decay, beta, heads, index);
  // So that who waits for this kernel has waited for the one before.
  if (beside_previous && blockIdx.x + 1 == gridDim.x) await_all_before();
}

}  // namespace

Status delta_gates_cuda(OpContext& context, const DeltaGatesArgs& args) {
  const std::int64_t count = args.a.dim(0) * args.a.dim(1);
  if (count == 0) return {};
  if (count > (std::int64_t{1} << 31)) return internal_error("delta_gates: too many elements for one call");
  return with_float_type(args.a.dtype, [&](auto element) {
    using T = decltype(element);
    launch_kernel(context, gates<T>, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                  head_rows_of<const T>(args.a), head_rows_of<const T>(args.b), args.rate.data<float>(),
                  args.dt_bias.data<float>(), args.decay.data<float>(), args.beta.data<float>(),
                  static_cast<int>(args.a.dim(1)), static_cast<unsigned>(count), args.beside_previous);
    return cuda_launch_status("delta_gates");
  });
}

}  // namespace mstar
