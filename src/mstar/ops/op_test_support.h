// What the tests and benches of ops share: a context on the host, seeded tensors, guarded outputs.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/ops/op_context.h"

namespace mstar::op_test {

// A host context with a pool of `num_threads` and an arena of `arena_bytes`.
class Host {
 public:
  explicit Host(int num_threads = 1, std::size_t arena_bytes = std::size_t{64} << 20)
      : device_(make_cpu_device()), pool_(num_threads), memory_(new std::byte[arena_bytes + 256]) {
    auto* base =
        reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory_.get()) + 255) & ~std::uintptr_t{255});
    arena_ = Arena(base, arena_bytes);
    context_ = std::make_unique<OpContext>(OpContext{*device_, {}, arena_, &pool_});
  }
  OpContext& context() { return *context_; }
  Device& device() { return *device_; }
  Arena& arena() { return arena_; }

 private:
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  std::unique_ptr<std::byte[]> memory_;
  Arena arena_;
  std::unique_ptr<OpContext> context_;
};

inline std::vector<float> random_floats(std::int64_t count, std::uint32_t seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) value = normal(generator);
  return out;
}

// A matrix [rows, columns] whose rows are `stride` apart, guarded by a value that no op writes: around it and between
// rows.
class Guarded {
 public:
  static constexpr float kGuard = 12345.678f;
  static constexpr std::int64_t kEdge = 64;
  Guarded(std::int64_t rows, std::int64_t columns, std::int64_t stride = 0)
      : rows_(rows),
        columns_(columns),
        stride_(stride ? stride : columns),
        values_(static_cast<std::size_t>(rows * stride_ + 2 * kEdge), kGuard) {}
  TensorView view() {
    TensorView out(values_.data() + kEdge, DType::f32, {rows_, columns_});
    out.strides[0] = stride_;
    return out;
  }
  float at(std::int64_t row, std::int64_t column) const {
    return values_[static_cast<std::size_t>(kEdge + row * stride_ + column)];
  }
  void set(std::int64_t row, std::int64_t column, float value) {
    values_[static_cast<std::size_t>(kEdge + row * stride_ + column)] = value;
  }
  bool guards_intact() const {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values_.size()); ++i) {
      const std::int64_t at = i - kEdge;
      const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < columns_;
      if (!inside && values_[static_cast<std::size_t>(i)] != kGuard) return false;
    }
    return true;
  }
  // Bitwise.
  bool row_equals(std::int64_t row, const Guarded& other, std::int64_t other_row) const {
    return std::memcmp(&values_[static_cast<std::size_t>(kEdge + row * stride_)],
                       &other.values_[static_cast<std::size_t>(kEdge + other_row * other.stride_)],
                       static_cast<std::size_t>(columns_) * sizeof(float)) == 0;
  }
  bool equals(const Guarded& other) const {
    for (std::int64_t row = 0; row < rows_; ++row)
      if (!row_equals(row, other, row)) return false;
    return true;
  }

 private:
  std::int64_t rows_, columns_, stride_;
  std::vector<float> values_;
};

inline TensorView matrix(std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  return TensorView(values.data(), DType::f32, {rows, columns});
}
inline TensorView vector(std::vector<float>& values) {
  return TensorView(values.data(), DType::f32, {static_cast<std::int64_t>(values.size())});
}
inline TensorView vector(std::vector<std::int32_t>& values) {
  return TensorView(values.data(), DType::i32, {static_cast<std::int64_t>(values.size())});
}

}  // namespace mstar::op_test
