// A tensor on the host that may be shared between threads because nobody changes it: request inputs, host ports,
// chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/dims.h"
#include "mstar/base/dtype.h"

namespace mstar {

// Row-major. Copying shares the bytes (owners: every holder of a copy; the bytes are immutable once shared).
// An empty value with no dims is a signal: it counts as delivered and carries nothing.
class HostValue {
 public:
  HostValue() = default;
  HostValue(DType dtype, Dims dims, std::vector<std::byte> bytes) : dtype_(dtype), dims_(dims) {
    auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    bytes_ = *owner;
    owner_ = std::move(owner);
  }
  // Shares an upload without a copy; `text` is never null.
  static HostValue shared_blob(std::shared_ptr<const std::string> text) {
    HostValue out;
    out.dims_ = {static_cast<std::int64_t>(text->size())};
    out.bytes_ = std::as_bytes(std::span<const char>(text->data(), text->size()));
    out.owner_ = std::move(text);
    return out;
  }

  // A part of bytes that `owner` (never null) keeps alive; results of one step share theirs.
  static HostValue part_of(std::shared_ptr<const void> owner, DType dtype, Dims dims,
                           std::span<const std::byte> bytes) {
    HostValue out;
    out.dtype_ = dtype;
    out.dims_ = dims;
    out.bytes_ = bytes;
    out.owner_ = std::move(owner);
    return out;
  }

  static HostValue utf8(std::string_view text) { return raw(DType::utf8, text.data(), text.size()); }
  static HostValue blob(std::string_view data) { return raw(DType::bytes, data.data(), data.size()); }
  template <class T>
  static HostValue of(DType dtype, std::span<const T> values) {
    std::vector<std::byte> bytes(values.size_bytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return HostValue(dtype, {static_cast<std::int64_t>(values.size())}, std::move(bytes));
  }
  static HostValue i32(std::span<const std::int32_t> values) { return of<std::int32_t>(DType::i32, values); }
  static HostValue f32(std::span<const float> values) { return of<float>(DType::f32, values); }
  static HostValue pcm(std::span<const float> values) { return of<float>(DType::pcm, values); }

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Keeps bytes() alive.
  const std::shared_ptr<const void>& owner() const { return owner_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes().data()), bytes().size() / sizeof(T)};
  }
  bool is_signal() const { return dims_.empty() && bytes().empty(); }
  std::size_t size_bytes() const { return bytes().size(); }

 private:
  static HostValue raw(DType dtype, const char* data, std::size_t size) {
    std::vector<std::byte> bytes(size);
    if (size) std::memcpy(bytes.data(), data, size);
    return HostValue(dtype, {static_cast<std::int64_t>(size)}, std::move(bytes));
  }

  DType dtype_ = DType::bytes;
  Dims dims_;
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace mstar
