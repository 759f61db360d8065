#include "mstar/tensor/tensor.h"

#include <utility>

namespace mstar {

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank(); ++i) out += (i ? "," : "") + std::to_string(shape[i]);
  return out + "]";
}

TensorView::TensorView(void* p, DType type, Shape s, DeviceId d) : pointer(p), dtype(type), device(d), shape(s) {
  std::int64_t stride = 1;
  for (int i = s.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= s[i];
  }
}

bool TensorView::contiguous() const {
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

TensorView TensorView::slice(std::int64_t begin, std::int64_t end) const {
  MSTAR_CHECK(shape.rank() >= 1 && 0 <= begin && begin <= end && end <= shape[0]);
  TensorView out = *this;
  out.pointer = static_cast<std::byte*>(pointer) + begin * strides[0] * static_cast<std::int64_t>(dtype_bytes(dtype));
  out.shape[0] = end - begin;
  return out;
}

TensorView TensorView::at(std::int64_t i) const {
  const TensorView row = slice(i, i + 1);
  TensorView out = row;
  out.shape = Shape(row.shape.dims().subspan(1));
  for (int axis = 0; axis < out.shape.rank(); ++axis) out.strides[axis] = row.strides[axis + 1];
  return out;
}

TensorView TensorView::reshaped(Shape s) const {
  MSTAR_CHECK(contiguous() && s.num_elements() == shape.num_elements());
  return TensorView(pointer, dtype, s, device);
}

Result<Tensor> Tensor::allocate(Device& device, DType dtype, Shape shape) {
  Tensor out;
  MSTAR_TRY_ASSIGN(void* const pointer,
                   device.allocate(static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype)));
  out.view_ = TensorView(pointer, dtype, shape, device.id());
  out.device_ = &device;
  return out;
}

Result<Tensor> Tensor::allocate_weights(Device& device, DType dtype, Shape shape) {
  Tensor out;
  MSTAR_TRY_ASSIGN(void* const pointer,
                   device.allocate_weights(static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype)));
  out.view_ = TensorView(pointer, dtype, shape, device.id());
  out.device_ = &device;
  out.is_weights_ = true;
  return out;
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    reset();
    view_ = std::exchange(other.view_, {});
    device_ = std::exchange(other.device_, nullptr);
    is_weights_ = other.is_weights_;
  }
  return *this;
}

void Tensor::reset() {
  if (device_ && is_weights_) device_->release_weights(view_.pointer);
  if (device_ && !is_weights_) device_->release(view_.pointer);
  device_ = nullptr;
  view_ = {};
}

}  // namespace mstar
