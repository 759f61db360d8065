// Rows of activations as ops see them: a matrix [M, N], or heads [tokens, heads, N] as tokens * heads rows.
#pragma once

#include <cstdint>

#include "mstar/tensor/tensor.h"

namespace mstar {

// What temporaries between products may be: f32, and on CUDA also f16 and bf16.
inline bool is_activation_dtype(Backend backend, DType dtype) {
  return dtype == DType::f32 || (backend == Backend::cuda && (dtype == DType::f16 || dtype == DType::bf16));
}

// Activations of `shape`, [M, N] or [tokens, heads, N], whose last axis is contiguous; the others may lie apart.
inline bool is_activation_rows(Backend backend, const TensorView& view, const Shape& shape) {
  const bool fits = view.shape == shape && is_activation_dtype(backend, view.dtype) && (view.pointer || view.empty());
  if (shape.rank() == 3) return fits && (shape[2] <= 1 || view.strides[2] == 1);
  return fits && shape.rank() == 2 && (shape[1] <= 1 || view.strides[1] == 1);
}

// [tokens, heads, head_dim] with each token's heads contiguous; tokens may lie apart.
inline bool is_activation_heads(Backend backend, const TensorView& view, std::int64_t tokens, std::int64_t heads,
                                std::int64_t head_dim) {
  return is_activation_rows(backend, view, {tokens, heads, head_dim}) && (heads <= 1 || view.stride(1) == head_dim);
}

inline std::int64_t num_head_rows(const TensorView& view) {
  return view.shape.rank() == 3 ? view.dim(0) * view.dim(1) : view.dim(0);
}
inline std::int64_t head_row_width(const TensorView& view) { return view.dim(view.shape.rank() == 3 ? 2 : 1); }
// Where row `row` begins, in elements.
inline std::int64_t head_row_offset(const TensorView& view, std::int64_t row) {
  if (view.shape.rank() == 2) return row * view.stride(0);
  return row / view.dim(1) * view.stride(0) + row % view.dim(1) * view.stride(1);
}

}  // namespace mstar
