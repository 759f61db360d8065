// What the tensor-core kernels of attention share: tiles of bf16 in shared memory, fragments of mma.m16n8k16, and the
// split of a float into two bf16.
//
// Fragments, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"):
//   A 16 x 16: a0 (g, 2t..2t+1), a1 (g + 8, 2t..), a2 (g, 2t + 8..), a3 (g + 8, 2t + 8..)
//   B 16 x 8:  b0 (2t..2t+1, g), b1 (2t + 8.., g)
//   C 16 x 8:  c0 c1 (g, 2t..2t+1), c2 c3 (g + 8, 2t..2t+1)
#pragma once

#include <cstdint>
#include <type_traits>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/kv_layout_cuda.cuh"
#include "mstar/ops/cuda_approximate.cuh"
#include "mstar/ops/cuda_kernel.cuh"

namespace mstar::cuda {

inline constexpr int kTileKeys = 64;
inline constexpr int kTileThreads = 128;  // four warps
inline constexpr int kTileWarps = kTileThreads / kWarp;

// [tokens, heads, kHeadDim] with a token's heads side by side.
template <class T>
struct TokenHeads {
  T* data = nullptr;
  std::int64_t token_stride = 0;
};
template <class T>
TokenHeads<T> token_heads_of(const TensorView& view) {
  return {static_cast<T*>(view.pointer), view.stride(0)};
}

// What scales each element of the output, if anything: heads may lie apart.
template <class T>
struct HeadGate {
  const T* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  __device__ const T* at(int token, int head) const { return data + token * token_stride + head * head_stride; }
};
template <class T>
HeadGate<T> head_gate_of(const TensorView& view) {
  if (!view.pointer) return {};
  return {static_cast<const T*>(view.pointer), view.stride(0), view.stride(1)};
}
// sigmoid(gate) x
template <class T>
__device__ inline float gated(float x, float gate) {
  if constexpr (std::is_same_v<T, float>) return x / (1.0f + expf(-gate));
  return __fdividef(x, 1.0f + __expf(-gate));
}

struct Row {
  int index = 0, begin = 0, count = 0;
};
// The row that `token` is in; called by whole warps.
__device__ inline Row find_row(const std::int32_t* offsets, int num_rows, int token) {
  const int lane = threadIdx.x % kWarp;
  int row = 0;
  for (int base = 0; base < num_rows; base += kWarp)
    row += __popc(
        __ballot_sync(kAllLanes, base + lane < num_rows && offsets[min(base + lane, num_rows - 1) + 1] <= token));
  row = min(row, num_rows - 1);
  const int begin = offsets[row];
  return {row, begin, offsets[row + 1] - begin};
}

// Rows of a tile lie so far apart that the eight rows that ldmatrix reads at once fall into different banks.
template <int kHeadDim>
inline constexpr int kTileStride = kHeadDim + 8;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory in the background; zeros when not `valid`, and then nothing is read.
__device__ inline void copy_16_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until at most kLeft of this thread's committed groups are on their way.
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}

// Four 8 x 8 matrices of bf16: lanes 8i..8i+7 give the rows of matrix i.
__device__ inline void load_matrices(std::uint32_t (&to)[4], const __nv_bfloat16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], const __nv_bfloat16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// c += a b, summed in f32.
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The lower half holds `low`.
__device__ inline std::uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
// x = high + low to about 2^-17 of x.
__device__ inline void split_pair(float x, float y, std::uint32_t& high, std::uint32_t& low) {
  const float x_high = __bfloat162float(__float2bfloat16_rn(x)), y_high = __bfloat162float(__float2bfloat16_rn(y));
  high = pack_pair(x_high, y_high);
  low = pack_pair(x - x_high, y - y_high);
}

// A launch with more than 48 KiB needs leave; when it is refused, so is the launch.
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// Calls run(element, head_dim) with a value of the queries' type and an integral_constant; for what
// fits_tiles() (attention_cuda.cu) lets through.
template <class Run>
Status with_tile_shape(DType dtype, std::int64_t head_dim, Run run) {
  const auto with_dim = [&](auto element) -> Status {
    switch (head_dim) {
      case 64:
        return run(element, std::integral_constant<int, 64>{});
      case 128:
        return run(element, std::integral_constant<int, 128>{});
      case 256:
        return run(element, std::integral_constant<int, 256>{});
      default:
        return internal_error("no CUDA kernel for heads of " + std::to_string(head_dim));
    }
  };
  return dtype == DType::bf16 ? with_dim(__nv_bfloat16{}) : with_dim(float{});
}

}  // namespace mstar::cuda
