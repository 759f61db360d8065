// Parts of a projection's outputs, side by side in its rows, as operands of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/tensor/tensor.h"

namespace mstar {

// Columns [begin, begin + count) of a matrix, or elements of a vector; a null view stays null.
inline TensorView columns(TensorView view, std::int64_t begin, std::int64_t count) {
  if (!view.pointer) return view;
  view.pointer = view.data<std::byte>() + begin * static_cast<std::int64_t>(dtype_bytes(view.dtype));
  view.shape[-1] = count;
  return view;
}

// Columns [begin, begin + heads * head_dim) of rows [tokens, width] as [tokens, heads, head_dim].
inline TensorView head_columns(TensorView rows, std::int64_t begin, std::int64_t heads, std::int64_t head_dim) {
  TensorView view = columns(rows, begin, heads * head_dim);
  view.shape = {rows.dim(0), heads, head_dim};
  view.strides = {rows.stride(0), head_dim, 1};
  return view;
}

}  // namespace mstar
