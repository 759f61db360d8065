// Checks of views that the ops share. A fault here is a fault of the caller's plan and comes back as an internal error.
#pragma once

#include <string>

#include "mstar/tensor/tensor.h"

namespace mstar {

// A matrix of `dtype` whose rows are contiguous; the rows may lie apart (or overlap, for reading).
inline bool is_rows_of(const TensorView& view, DType dtype, std::int64_t num_rows, std::int64_t num_columns) {
  return view.dtype == dtype && view.shape.rank() == 2 && view.dim(0) == num_rows && view.dim(1) == num_columns &&
         (num_columns <= 1 || view.stride(1) == 1) && (view.pointer || view.empty());
}

// A contiguous vector.
inline bool is_vector_of(const TensorView& view, DType dtype, std::int64_t length) {
  return view.dtype == dtype && view.shape.rank() == 1 && view.dim(0) == length &&
         (length <= 1 || view.stride(0) == 1) && (view.pointer || length == 0);
}

// [tokens, heads, head_dim] with each token's heads contiguous; tokens may lie apart (a slice of a fused projection).
inline bool is_token_heads(const TensorView& view, std::int64_t num_tokens, std::int64_t num_heads,
                           std::int64_t head_dim) {
  return view.dtype == DType::f32 && view.shape.rank() == 3 && view.dim(0) == num_tokens && view.dim(1) == num_heads &&
         view.dim(2) == head_dim && (head_dim <= 1 || view.stride(2) == 1) &&
         (num_heads <= 1 || view.stride(1) == head_dim) && (view.pointer || view.empty());
}

#define MSTAR_OP_EXPECT(op, condition)                                                            \
  do {                                                                                            \
    if (!(condition)) return ::mstar::internal_error(std::string(op) + ": expected " #condition); \
  } while (false)

}  // namespace mstar
