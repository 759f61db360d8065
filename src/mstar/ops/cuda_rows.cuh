// Rows of activations on CUDA: eight elements a thread, in loads and stores of 16 bytes where the rows allow it; and
// ragged rows cut into pieces.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/head_rows.h"

namespace mstar::cuda {

inline constexpr int kUnit = 8;  // elements that a thread takes at once

// `T` of the rows of head_rows.h.
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  int heads = 1;
  __device__ T* row(int r) const {
    if (heads == 1) return data + r * token_stride;
    return data + r / heads * token_stride + r % heads * head_stride;
  }
};
template <class T>
HeadRows<T> head_rows_of(const TensorView& view) {
  const bool has_heads = view.shape.rank() == 3;
  return {view.data<T>(), view.stride(0), has_heads ? view.stride(1) : 0,
          has_heads ? static_cast<int>(view.dim(1)) : 1};
}

// Whether `bytes`-wide accesses may begin at every row.
inline bool starts_on(const TensorView& view, std::size_t bytes) {
  bool aligned = reinterpret_cast<std::uintptr_t>(view.pointer) % bytes == 0;
  for (int axis = 0; axis + 1 < view.shape.rank(); ++axis)
    aligned &=
        view.dim(axis) <= 1 || static_cast<std::size_t>(view.stride(axis)) * dtype_bytes(view.dtype) % bytes == 0;
  return aligned;
}
inline bool rows_on_16_bytes(const TensorView& view) { return starts_on(view, 16); }

// kUnit values, those past `left` zero. `aligned`: the row starts on 16 bytes and `from` lies a multiple of kUnit in
// it.
template <class T>
__device__ inline void load_unit(const T* from, int left, bool aligned, float (&to)[kUnit]) {
  if (aligned && left >= kUnit) {
    constexpr int kWords = kUnit * static_cast<int>(sizeof(T)) / 16;
    uint4 words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = reinterpret_cast<const uint4*>(from)[w];
    T values[kUnit];
    memcpy(values, words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kUnit; ++i) to[i] = widen(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) to[i] = i < left ? widen(from[i]) : 0.0f;
  }
}
// The first min(left, kUnit) of them, rounded once.
template <class T>
__device__ inline void store_unit(const float (&from)[kUnit], int left, bool aligned, T* to) {
  if (aligned && left >= kUnit) {
    constexpr int kWords = kUnit * static_cast<int>(sizeof(T)) / 16;
    T values[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) values[i] = narrow<T>(from[i]);
    uint4 words[kWords];
    memcpy(words, values, sizeof(words));
#pragma unroll
    for (int w = 0; w < kWords; ++w) reinterpret_cast<uint4*>(to)[w] = words[w];
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      if (i < left) to[i] = narrow<T>(from[i]);
  }
}

// Four values at an address that four elements' bytes divide.
__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline float4 load_four(const __nv_bfloat16* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  __nv_bfloat16 v[4];
  memcpy(v, &words, sizeof(words));
  return make_float4(widen(v[0]), widen(v[1]), widen(v[2]), widen(v[3]));
}
__device__ inline void store_four(float4 value, float* to) { *reinterpret_cast<float4*>(to) = value; }
__device__ inline void store_four(float4 value, __nv_bfloat16* to) {
  const __nv_bfloat16 v[4] = {narrow<__nv_bfloat16>(value.x), narrow<__nv_bfloat16>(value.y),
                              narrow<__nv_bfloat16>(value.z), narrow<__nv_bfloat16>(value.w)};
  uint2 words;
  memcpy(&words, v, sizeof(words));
  *reinterpret_cast<uint2*>(to) = words;
}

// Calls run(element) for f32 and bf16; the ops' checks and tables leave only these two.
template <class Run>
Status with_f32_or_bf16(DType dtype, Run run) {
  return dtype == DType::bf16 ? run(__nv_bfloat16{}) : run(float{});
}

// Tokens [first, first + count) of row `row`, which has `total`; its token 0 is `begin` of the batch.
struct Piece {
  int row = -1;
  int begin = 0, total = 0;
  int first = 0, count = 0;
};
// Rows of at least `least` tokens are cut into pieces of at most `length`, and where breaks[row] of their tokens are
// over; this is piece `index` of them all, row by row, or row -1. length 0: row `index` whole. Called by whole warps.
__device__ inline Piece piece_of(const std::int32_t* offsets, int num_rows, int length, int least, int index,
                                 const std::int32_t* breaks = nullptr) {
  if (length == 0) {
    const int begin = offsets[index], total = offsets[index + 1] - begin;
    return {total > 0 && total >= least ? index : -1, begin, total, 0, total};
  }
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < num_rows; base += kWarp) {
    const int row = base + lane;
    const int begin = row < num_rows ? offsets[row] : 0;
    const int total = row < num_rows ? offsets[row + 1] - begin : 0;
    const int cut = breaks && row < num_rows ? breaks[row] : 0, before_cut = (cut + length - 1) / length;
    const int pieces = total >= least ? before_cut + (total - cut + length - 1) / length : 0;
    int sum = pieces;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    const unsigned holds = __ballot_sync(kAllLanes, index < before + sum);
    if (holds) {
      const int at = __ffs(static_cast<int>(holds)) - 1;
      const int own = index - before - __shfl_sync(kAllLanes, sum - pieces, at);
      const int behind = own - __shfl_sync(kAllLanes, before_cut, at), cut_at = __shfl_sync(kAllLanes, cut, at);
      Piece piece{base + at, __shfl_sync(kAllLanes, begin, at), __shfl_sync(kAllLanes, total, at), own * length, 0};
      if (behind >= 0) piece.first = cut_at + behind * length;
      piece.count = min(length, (behind >= 0 ? piece.total : cut_at) - piece.first);
      return piece;
    }
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return {};
}
// No batch of that many rows and tokens has more pieces.
inline int most_pieces(int num_rows, int num_tokens, int length) {
  return length == 0 ? num_rows : std::min(num_rows, num_tokens) + num_tokens / length;
}

}  // namespace mstar::cuda
