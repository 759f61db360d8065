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
