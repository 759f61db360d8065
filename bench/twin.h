// Runs one call on two devices: the same values are placed on each, and what it wrote is read back with its guards.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mstar/base/check.h"
#include "mstar/ops/op_context.h"

namespace mstar::bench {

// The values of one call on one device. A failed allocation ends the program: this is a check, not a server.
class Place {
 public:
  static constexpr float kGuard = 12345.678f;

  explicit Place(Device& device) : device_(device) {}
  // Row-major floats; rows `row_stride` apart (0: one after the other), for which `values` holds them all.
  TensorView f32(const std::vector<float>& values, Shape shape, std::int64_t row_stride = 0) {
    TensorView view(put(values.data(), values.size() * sizeof(float)), DType::f32, shape, device_.id());
    if (row_stride) view.strides[0] = row_stride;
    return view;
  }
  TensorView i32(const std::vector<std::int32_t>& values) {
    return TensorView(put(values.data(), values.size() * sizeof(std::int32_t)), DType::i32,
                      {static_cast<std::int64_t>(values.size())}, device_.id());
  }
  // The same values rounded to f32, f16 or bf16.
  TensorView as(DType dtype, const std::vector<float>& values, Shape shape) {
    if (dtype == DType::f32) return f32(values, shape);
    std::vector<std::uint16_t> bits;
    for (const float v : values) bits.push_back(dtype == DType::f16 ? to_half(v).bits : to_bfloat16(v).bits);
    return TensorView(put(bits.data(), bits.size() * sizeof(bits[0])), dtype, shape, device_.id());
  }
  // For activations: f32 on the CPU, `dtype` on the GPU. The values are those of `dtype` on both. Rows of one element,
  // row-major, `row_stride` apart as above.
  TensorView activations(DType dtype, std::vector<float> values, Shape shape, std::int64_t row_stride = 0) {
    if (dtype == DType::bf16)
      for (float& v : values) v = to_float(to_bfloat16(v));
    TensorView view = as(device_.id().backend == Backend::cpu ? DType::f32 : dtype, values, shape);
    if (row_stride) view.strides[0] = row_stride;
    return view;
  }
  // Bytes of 0xff (NaN): memory that the op owns between calls.
  TensorView poisoned(DType dtype, Shape shape) {
    const std::vector<std::byte> bytes(static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype),
                                       std::byte{0xff});
    return TensorView(put(bytes.data(), bytes.size()), dtype, shape, device_.id());
  }
  // Rows to be written, every element a guard before.
  TensorView out(std::int64_t rows, std::int64_t columns, std::int64_t row_stride = 0) {
    const std::int64_t stride = row_stride ? row_stride : columns;
    TensorView view =
        f32(std::vector<float>(static_cast<std::size_t>(rows * stride + 64), kGuard), {rows, columns}, stride);
    outputs_.push_back({view, static_cast<std::size_t>(rows * stride + 64)});
    return view;
  }
  // The same for activations: f32 on the CPU, `dtype` on the GPU.
  TensorView out(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride = 0) {
    if (dtype == DType::f32 || device_.id().backend == Backend::cpu) return out(rows, columns, row_stride);
    const std::int64_t stride = row_stride ? row_stride : columns, count = rows * stride + 64;
    TensorView view = as(dtype, std::vector<float>(static_cast<std::size_t>(count), kGuard), {rows, columns});
    view.strides[0] = stride;
    outputs_.push_back({view, static_cast<std::size_t>(count)});
    return view;
  }
  // State that the call reads and writes: compared afterwards like an output.
  TensorView state(DType dtype, const std::vector<float>& values, Shape shape) {
    TensorView view = as(dtype, values, shape);
    outputs_.push_back({view, values.size()});
    return view;
  }
  // Activations that the call changes where they lie.
  TensorView in_out(DType dtype, const std::vector<float>& values, Shape shape, std::int64_t row_stride = 0) {
    TensorView view = activations(dtype, values, shape, row_stride);
    outputs_.push_back({view, values.size()});
    return view;
  }
  TensorView out_i32(std::int64_t count) {
    TensorView view = i32(std::vector<std::int32_t>(static_cast<std::size_t>(count), -7));
    outputs_.push_back({view, static_cast<std::size_t>(count)});
    return view;
  }
  std::size_t bytes() const { return bytes_; }
  // Everything that the outputs hold, guards included, as floats.
  std::vector<float> outputs() {
    std::vector<float> all;
    const Stream stream = device_.default_stream();
    for (const Output& each : outputs_) {
      const std::size_t bytes = dtype_bytes(each.view.dtype);
      std::vector<std::byte> stored(each.count * bytes);
      device_.copy_to_host(stored.data(), each.view.pointer, stored.size(), stream);
      device_.synchronize(stream);
      for (std::size_t i = 0; i < each.count; ++i) all.push_back(number(each.view.dtype, stored.data() + i * bytes));
    }
    return all;
  }
  ~Place() {
    for (void* pointer : owned_) device_.release(pointer);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  struct Output {
    TensorView view;
    std::size_t count;
  };
  static float number(DType dtype, const std::byte* at) {
    std::uint32_t word = 0;
    std::memcpy(&word, at, dtype_bytes(dtype));
    switch (dtype) {
      case DType::i32:
        return static_cast<float>(static_cast<std::int32_t>(word));
      case DType::bf16: {
        const BFloat16 value{static_cast<std::uint16_t>(word)};
        return value.bits == to_bfloat16(kGuard).bits ? kGuard : to_float(value);
      }
      case DType::f16: {
        const Half value{static_cast<std::uint16_t>(word)};
        return value.bits == to_half(kGuard).bits ? kGuard : to_float(value);
      }
      default:
        return std::bit_cast<float>(word);
    }
  }
  void* put(const void* from, std::size_t bytes) {
    auto pointer = device_.allocate(bytes);
    MSTAR_CHECK(pointer.has_value(), "no memory for a check");
    owned_.push_back(*pointer);
    bytes_ += bytes;
    const Stream stream = device_.default_stream();
    device_.copy_to_device(*pointer, from, bytes, stream);
    device_.synchronize(stream);
    return *pointer;
  }
  Device& device_;
  std::vector<void*> owned_;
  std::size_t bytes_ = 0;
  std::vector<Output> outputs_;
};

// The worst of many comparisons.
struct Difference {
  double largest = 0;   // |a - b| / max(1, |b|)
  double relative = 0;  // ||a - b|| / ||b||, the largest of any case
  int num_cases = 0;
  bool same_places = true;  // guards intact, infinities and NaN alike

  void add(const std::vector<float>& a, const std::vector<float>& b) {
    ++num_cases;
    same_places &= a.size() == b.size();
    double squares = 0, norm = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i] == b[i]) {
        if (std::isfinite(b[i]) && b[i] != Place::kGuard) norm += static_cast<double>(b[i]) * b[i];
        continue;
      }
      if (!std::isfinite(a[i]) || !std::isfinite(b[i]) || a[i] == Place::kGuard || b[i] == Place::kGuard) {
        same_places = false;
        continue;
      }
      const double apart = std::fabs(static_cast<double>(a[i]) - b[i]);
      largest = std::max(largest, apart / std::max(1.0, std::fabs(static_cast<double>(b[i]))));
      squares += apart * apart;
      norm += static_cast<double>(b[i]) * b[i];
    }
    if (squares > 0) relative = std::max(relative, std::sqrt(squares / norm));
  }
};

}  // namespace mstar::bench
