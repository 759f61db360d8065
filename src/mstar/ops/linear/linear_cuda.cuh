// What the CUDA kernels of linear share.
#pragma once

#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/linear/linear.h"

namespace mstar::cuda {

// A matrix of f32, f16 or bf16 whose rows lie `stride` elements apart.
struct FloatRows {
  void* data = nullptr;
  std::int64_t stride = 0;
  DType dtype = DType::f32;
  template <class T>
  __device__ T* row(std::int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  __device__ float get(std::int64_t r, std::int64_t column) const {
    if (dtype == DType::f32) return row<float>(r)[column];
    return dtype == DType::bf16 ? widen(row<__nv_bfloat16>(r)[column]) : widen(row<__half>(r)[column]);
  }
  // Four neighbours, where rows start on 16 bytes and `column` is a multiple of 4.
  __device__ float4 get_four(std::int64_t r, std::int64_t column) const {
    if (dtype == DType::f32) return *reinterpret_cast<const float4*>(row<float>(r) + column);
    return dtype == DType::bf16 ? widen_four(row<__nv_bfloat16>(r) + column) : widen_four(row<__half>(r) + column);
  }
  __device__ void set_four(std::int64_t r, std::int64_t column, float4 value) const {
    if (dtype == DType::f32) {
      *reinterpret_cast<float4*>(row<float>(r) + column) = value;
    } else if (dtype == DType::bf16) {
      narrow_four(value, row<__nv_bfloat16>(r) + column);
    } else {
      narrow_four(value, row<__half>(r) + column);
    }
  }
  template <class T>
  __device__ static float4 widen_four(const T* from) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    T values[4];
    memcpy(values, &words, sizeof(words));
    return make_float4(widen(values[0]), widen(values[1]), widen(values[2]), widen(values[3]));
  }
  template <class T>
  __device__ static void narrow_four(float4 value, T* to) {
    const T values[4] = {narrow<T>(value.x), narrow<T>(value.y), narrow<T>(value.z), narrow<T>(value.w)};
    uint2 words;
    memcpy(&words, values, sizeof(words));
    *reinterpret_cast<uint2*>(to) = words;
  }
  // Rounds once.
  __device__ void set(std::int64_t r, std::int64_t column, float value) const {
    if (dtype == DType::f32) {
      row<float>(r)[column] = value;
    } else if (dtype == DType::bf16) {
      row<__nv_bfloat16>(r)[column] = narrow<__nv_bfloat16>(value);
    } else {
      row<__half>(r)[column] = narrow<__half>(value);
    }
  }
};
inline FloatRows float_rows_of(const TensorView& view) {
  if (!view.pointer) return {};
  return {view.pointer, view.stride(0), view.dtype};
}

// What follows a product.
struct Epilogue {
  const float* bias = nullptr;
  FloatRows residual;
  Activation activation = Activation::none;
  FloatRows out;

  __device__ void finish(std::int64_t row, std::int64_t column, float sum) const {
    if (bias) sum = __fadd_rn(sum, bias[column]);
    sum = activate_one(activation, sum);
    if (residual.data) sum = __fadd_rn(sum, residual.get(row, column));
    out.set(row, column, sum);
  }
  // Of four neighbours; zeros where there is none.
  __device__ float4 bias_of_four(std::int64_t column) const {
    if (!bias) return make_float4(0, 0, 0, 0);
    return make_float4(bias[column], bias[column + 1], bias[column + 2], bias[column + 3]);
  }
  // The same bits for four neighbours, before they are rounded to out's dtype; `biases` is bias_of_four(), `added` what
  // the residual holds there.
  __device__ float4 finished_four(float4 sum, float4 biases, float4 added) const {
    float values[4] = {sum.x, sum.y, sum.z, sum.w};
    const float shifts[4] = {biases.x, biases.y, biases.z, biases.w};
    const float others[4] = {added.x, added.y, added.z, added.w};
    if (bias)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = __fadd_rn(values[i], shifts[i]);
    if (activation != Activation::none)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = activate_one(activation, values[i]);
    if (residual.data)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = __fadd_rn(values[i], others[i]);
    return make_float4(values[0], values[1], values[2], values[3]);
  }
};
inline Epilogue epilogue_of(const LinearArgs& args) {
  return {args.bias.data<float>(), float_rows_of(args.residual), args.activation, float_rows_of(args.out)};
}

// Whether rows of the view start on 16 bytes.
inline bool starts_rows_on_16_bytes(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.pointer) % 16 == 0 &&
         (view.dim(0) == 1 || static_cast<std::size_t>(view.stride(0)) * dtype_bytes(view.dtype) % 16 == 0);
}

}  // namespace mstar::cuda
