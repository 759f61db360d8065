// What follows a product that a library made: bias, activation and residual.
#include "mstar/ops/linear/linear_cuda.cuh"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

template <class T>
struct Group {
  static constexpr int kCount = 16 / sizeof(T);
  __device__ static void load(const T* from, float (&to)[kCount]) { load_group(from, kCount, true, to); }
  __device__ static void store(const float (&from)[kCount], T* to) {
    T values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = narrow<T>(from[i]);
    uint4 words;
    memcpy(&words, values, sizeof(words));
    *reinterpret_cast<uint4*>(to) = words;
  }
};

// A thread takes 16 bytes of out, so `out` may be what is read.
template <class T>
__global__ void __launch_bounds__(kThreads) finish_rows(const Epilogue p, int num_groups, std::int64_t total) {
  await_inputs();
  constexpr int kCount = Group<T>::kCount;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= total) return;
  const std::int64_t row = index / num_groups;
  const int column = static_cast<int>(index % num_groups) * kCount;
  T* const out = p.out.row<T>(row) + column;
  float values[kCount], residual[kCount] = {};
  Group<T>::load(out, values);
  if (p.residual.data) Group<T>::load(p.residual.row<T>(row) + column, residual);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float value = values[i];
    if (p.bias) value = __fadd_rn(value, p.bias[column + i]);
    value = activate_one(p.activation, value);
    values[i] = p.residual.data ? __fadd_rn(value, residual[i]) : value;
  }
  Group<T>::store(values, out);
}

}  // namespace

Status linear_cuda_finish(OpContext& context, const LinearArgs& args) {
  return with_float_type(args.out.dtype, [&](auto element) {
    using T = decltype(element);
    const std::int64_t num_groups = args.out.dim(1) / Group<T>::kCount, total = num_groups * args.out.dim(0);
    const auto blocks = static_cast<unsigned>((total + kThreads - 1) / kThreads);
    launch_kernel(context, finish_rows<T>, blocks, kThreads, 0, epilogue_of(args), static_cast<int>(num_groups), total);
    return cuda_launch_status("linear");
  });
}

}  // namespace mstar
