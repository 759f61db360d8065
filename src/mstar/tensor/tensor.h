// Tensors: TensorView borrows, Tensor owns. Row-major unless strides say otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "mstar/base/check.h"
#include "mstar/base/dtype.h"
#include "mstar/base/result.h"
#include "mstar/device/device.h"

namespace mstar {

inline constexpr int kMaxRank = 6;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    MSTAR_CHECK(rank_ <= kMaxRank);
    for (int i = 0; i < rank_; ++i) dims_[i] = dims[i];
  }
  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return dims_[axis < 0 ? axis + rank_ : axis]; }
  std::int64_t& operator[](int axis) { return dims_[axis < 0 ? axis + rank_ : axis]; }
  std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.dims_[i] != b.dims_[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);

// Borrowed, trivially copyable; pass by value. `strides` count elements.
struct TensorView {
  void* pointer = nullptr;
  DType dtype = DType::f32;
  DeviceId device;
  Shape shape;
  std::array<std::int64_t, kMaxRank> strides{};

  TensorView() = default;
  // Contiguous.
  TensorView(void* p, DType type, Shape s, DeviceId d = {});

  bool empty() const { return shape.num_elements() == 0; }
  std::int64_t dim(int axis) const { return shape[axis]; }
  std::int64_t stride(int axis) const { return strides[axis < 0 ? axis + shape.rank() : axis]; }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype); }
  bool contiguous() const;
  template <class T>
  T* data() const {
    return static_cast<T*>(pointer);
  }
  // [begin, end) of axis 0.
  TensorView slice(std::int64_t begin, std::int64_t end) const;
  // Index `i` of axis 0, one rank less.
  TensorView at(std::int64_t i) const;
  // Same elements, other dims; contiguous only.
  TensorView reshaped(Shape s) const;
};

// Owns one buffer of a device. Move-only. The device must outlive it.
class Tensor {
 public:
  Tensor() = default;
  static Result<Tensor> allocate(Device& device, DType dtype, Shape shape);
  // For weights; see Device::allocate_weights().
  static Result<Tensor> allocate_weights(Device& device, DType dtype, Shape shape);
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor() { reset(); }
  TensorView view() const { return view_; }
  explicit operator bool() const { return device_ != nullptr; }
  std::size_t bytes() const { return device_ ? view_.bytes() : 0; }

 private:
  void reset();
  TensorView view_;
  Device* device_ = nullptr;
  bool is_weights_ = false;
};

}  // namespace mstar
