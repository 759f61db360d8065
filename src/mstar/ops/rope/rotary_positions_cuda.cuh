// Where tokens stand, as kernels that turn pairs read it.
#pragma once

#include "mstar/tensor/tensor.h"

namespace mstar::cuda {

struct RotaryPositions {
  const std::int32_t* positions = nullptr;  // [axes, tokens]
  const std::int32_t* pair_axes = nullptr;  // null: there is one axis
  std::int64_t axis_stride = 0;

  __device__ float of(int token, int pair) const {
    return static_cast<float>(positions[(pair_axes ? pair_axes[pair] * axis_stride : 0) + token]);
  }
};

inline RotaryPositions rotary_positions_of(const TensorView& positions, const TensorView& pair_axes) {
  const bool many = pair_axes.pointer != nullptr;
  return {positions.data<std::int32_t>(), pair_axes.data<std::int32_t>(), many ? positions.stride(0) : 0};
}

}  // namespace mstar::cuda
