// What the CUDA kernels of ops share: reading any float type, sums in one fixed order, one row's token range.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "mstar/base/dtype.h"
#include "mstar/device/cuda/cuda_check.h"
#include "mstar/ops/activation.h"
#include "mstar/ops/op_context.h"

namespace mstar::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

inline cudaStream_t stream_of(const OpContext& context) { return static_cast<cudaStream_t>(context.stream.native); }

// Until what was launched before has ended and its writes can be seen.
__device__ inline void await_all_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Every kernel of launch_kernel() waits for what was launched before it, in each launch at least in one thread, so that
// "it has ended" says the same of all before it. Three forms: await_inputs() first of all, before anything is read;
// plan, weights and old state first (see below what may be read), then the wait; or, of kernels beside the one in front
// (`follow`, `gates`), no wait but in the last block, for those behind.
//
// Waits until what was launched before has ended and its writes can be seen, and lets the next kernel's blocks come up
// meanwhile.
__device__ inline void await_inputs() {
  await_all_before();
  start_next();
}
// Instead, in kernels that have little to do between two products: the next kernel's blocks come up while the kernel in
// front may still run. So what stands before a kernel's wait may read what no kernel writes (weights), or what was
// written before the latest kernel that began with await_inputs(): everything before that one has ended. There is such
// a kernel between any two that touch the same state, at the least those that embed tokens and draw them.
__device__ inline void await_inputs_after_next() {
  start_next();
  await_all_before();
}

// Launches a kernel that waits by itself, on the context's stream: it may come up while the kernel before it
// still runs (programmatic dependent launch), which saves most of the gap between two short kernels.
template <class... Parameters, class... Args>
void launch_kernel(const OpContext& context, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   std::size_t shared_bytes, Args&&... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(context);
  config.attrs = &overlap;
  config.numAttrs = 1;
  // An error stays for cuda_launch_status().
  (void)cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

__device__ inline float widen(float v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ inline T narrow(float v);
template <>
__device__ inline float narrow<float>(float v) {
  return v;
}
template <>
__device__ inline __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

// kCount = 16 / sizeof(Element) values, those past `left` zero; one load when `aligned` says that they start on 16
// bytes.
template <int kCount, class Element>
__device__ inline void load_group(const Element* from, int left, bool aligned, float (&to)[kCount]) {
  static_assert(kCount * sizeof(Element) == 16);
  if (aligned && left >= kCount) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    Element values[kCount];
    memcpy(values, &words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = widen(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = i < left ? widen(from[i]) : 0.0f;
  }
}

// Calls run(element) with a value of the CUDA type of `dtype`; the ops' checks leave only these three.
template <class Run>
Status with_float_type(DType dtype, Run run) {
  switch (dtype) {
    case DType::f32:
      return run(float{});
    case DType::f16:
      return run(__half{});
    case DType::bf16:
      return run(__nv_bfloat16{});
    default:
      return internal_error("no CUDA kernel for " + std::string(dtype_name(dtype)));
  }
}

// The same tree on every call, so the same bits; every lane gets the result.
template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Over a block of kWarps warps; `scratch` holds kWarps values and may be used again after the next barrier.
template <int kWarps, class T>
__device__ inline T block_sum(T value, T* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  T total = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) total += scratch[i];
  __syncthreads();
  return total;
}
template <int kWarps>
__device__ inline float block_max(float value, float* scratch) {
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  float largest = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) largest = fmaxf(largest, scratch[i]);
  __syncthreads();
  return largest;
}

__device__ inline float activate_one(Activation activation, float x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu_erf:
      return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::silu:
      return x / (1.0f + expf(-x));
  }
  return x;
}

// The row r with offsets[r] <= token < offsets[r + 1]. Rows may be empty.
__device__ inline int row_of(const std::int32_t* offsets, int num_rows, int token) {
  int low = 0, high = num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A matrix whose rows lie `stride` elements apart.
struct Rows {
  float* data = nullptr;
  std::int64_t stride = 0;
  __device__ float* row(std::int64_t r) const { return data + r * stride; }
};
inline Rows rows_of(const TensorView& view) { return {view.data<float>(), view.stride(0)}; }

}  // namespace mstar::cuda
