// One product on the CPU in f32 and on the GPU in any dtypes.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/ops/linear/linear.h"

namespace mstar::bench {

struct LinearProbe {
  std::int64_t m = 1, n = 8, k = 8;
  DType in = DType::bf16;  // of x and W
  DType out = DType::bf16;
  bool bias = false;
  enum class Residual { none, apart, in_place } residual = Residual::none;
  Activation activation = Activation::none;
  std::int64_t padding = 8;  // elements between rows of x and out
  bool one_order = false;
};

inline float rounded(DType dtype, float value) {
  return dtype == DType::bf16 ? to_float(to_bfloat16(value)) : dtype == DType::f16 ? to_float(to_half(value)) : value;
}
// Standard normal times `spread`, rounded to `dtype`.
inline std::vector<float> drawn(DType dtype, std::int64_t count, std::uint32_t seed, double spread = 1.0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, spread);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) value = rounded(dtype, static_cast<float>(normal(generator)));
  return out;
}

// A matrix of floats on one device, its rows `padding` elements apart and a guard in between. The memory is `Tensor`'s.
class ProbeMatrix {
 public:
  static constexpr float kGuard = 1536.0f;  // exact in every float dtype

  static Result<ProbeMatrix> place(Device& device, DType dtype, const std::vector<float>& values, std::int64_t rows,
                                   std::int64_t columns, std::int64_t padding) {
    ProbeMatrix out;
    out.columns_ = columns;
    out.stride_ = columns + padding;
    std::vector<float> all(static_cast<std::size_t>(rows * out.stride_), kGuard);
    if (!values.empty())
      for (std::int64_t r = 0; r < rows; ++r)
        std::copy_n(values.data() + r * columns, columns, all.data() + r * out.stride_);
    MSTAR_TRY_ASSIGN(out.memory_, Tensor::allocate(device, dtype, {rows * out.stride_}));
    std::vector<std::byte> bytes(out.memory_.bytes());
    const std::size_t element = dtype_bytes(dtype);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint16_t half = dtype == DType::f16 ? to_half(all[i]).bits : to_bfloat16(all[i]).bits;
      std::memcpy(bytes.data() + i * element, dtype == DType::f32 ? static_cast<const void*>(&all[i]) : &half, element);
    }
    const Stream stream = device.default_stream();
    device.copy_to_device(out.memory_.view().pointer, bytes.data(), bytes.size(), stream);
    device.synchronize(stream);
    out.rows_ = rows;
    return out;
  }
  TensorView view() const {
    TensorView out(memory_.view().pointer, memory_.view().dtype, {rows_, columns_}, memory_.view().device);
    out.strides[0] = stride_;
    return out;
  }
  // Rows without what lies between them; empty when a guard was overwritten.
  std::vector<float> read(Device& device) const {
    std::vector<std::byte> bytes(memory_.bytes());
    const Stream stream = device.default_stream();
    device.copy_to_host(bytes.data(), memory_.view().pointer, bytes.size(), stream);
    device.synchronize(stream);
    const DType dtype = memory_.view().dtype;
    const std::size_t element = dtype_bytes(dtype);
    std::vector<float> out;
    for (std::int64_t i = 0; i < rows_ * stride_; ++i) {
      float value = 0;
      std::uint16_t half = 0;
      const std::byte* from = bytes.data() + static_cast<std::size_t>(i) * element;
      std::memcpy(dtype == DType::f32 ? static_cast<void*>(&value) : &half, from, element);
      if (dtype == DType::f16) value = to_float(Half{half});
      if (dtype == DType::bf16) value = to_float(BFloat16{half});
      if (i % stride_ < columns_) {
        out.push_back(value);
      } else if (value != kGuard) {
        return {};
      }
    }
    return out;
  }

 private:
  Tensor memory_;
  std::int64_t rows_ = 0, columns_ = 0, stride_ = 0;
};

// Copies of one pseudo-random weight, of `least_bytes` together: products that take them in turn read memory and not
// the L2 cache.
inline Result<std::vector<LinearWeight>> weights_in_turn(Device& device, std::int64_t n, std::int64_t k, DType dtype,
                                                         std::size_t least_bytes) {
  std::vector<float> values(static_cast<std::size_t>(n * k));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-36f;
  }
  const LinearSource source{TensorView(values.data(), DType::f32, {n, k})};
  std::vector<LinearWeight> out;
  for (std::size_t bytes = 0; bytes < least_bytes; bytes += out.back().bytes()) {
    MSTAR_TRY_ASSIGN(LinearWeight weight, LinearWeight::pack(device, source, dtype));
    out.push_back(std::move(weight));
  }
  return out;
}

}  // namespace mstar::bench
