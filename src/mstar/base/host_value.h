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

// Row-major. Copying shares the bytes (owners: every holder of a copy; the bytes are immutable once shared), but for a
// few, which each copy holds in place: a token or a piece of text crosses threads without a count of references. So
// what bytes(), text() and as() give is valid as long as the value itself is there and stays where it is. An empty
// value with no dims is a signal: it counts as delivered and carries nothing.
class HostValue {
 public:
  static constexpr std::size_t kMostInPlace = 24;  // bytes

  HostValue() = default;
  HostValue(DType dtype, Dims dims, std::vector<std::byte> bytes) : dtype_(dtype), dims_(dims) {
    if (bytes.size() <= kMostInPlace) {
      hold(bytes);
      return;
    }
    auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    const std::span<const std::byte> all = *owner;
    share(std::move(owner), all);
  }
  static HostValue copy_of(DType dtype, Dims dims, std::span<const std::byte> bytes) {
    if (bytes.size() > kMostInPlace) return HostValue(dtype, dims, std::vector<std::byte>(bytes.begin(), bytes.end()));
    HostValue out;
    out.dtype_ = dtype;
    out.dims_ = dims;
    out.hold(bytes);
    return out;
  }
  // Shares an upload without a copy; `text` is never null.
  static HostValue shared_blob(std::shared_ptr<const std::string> text) {
    HostValue out;
    out.dims_ = {static_cast<std::int64_t>(text->size())};
    const auto bytes = std::as_bytes(std::span<const char>(text->data(), text->size()));
    out.share(std::move(text), bytes);
    return out;
  }

  // A part of bytes that `owner` (never null) keeps alive; results of one step share theirs.
  static HostValue part_of(std::shared_ptr<const void> owner, DType dtype, Dims dims,
                           std::span<const std::byte> bytes) {
    HostValue out;
    out.dtype_ = dtype;
    out.dims_ = dims;
    out.share(std::move(owner), bytes);
    return out;
  }

  static HostValue utf8(std::string_view text) { return of<char>(DType::utf8, text); }
  static HostValue blob(std::string_view data) { return of<char>(DType::bytes, data); }
  template <class T>
  static HostValue of(DType dtype, std::span<const T> values) {
    return copy_of(dtype, {static_cast<std::int64_t>(values.size())}, std::as_bytes(values));
  }
  static HostValue i32(std::span<const std::int32_t> values) { return of<std::int32_t>(DType::i32, values); }
  static HostValue f32(std::span<const float> values) { return of<float>(DType::f32, values); }
  static HostValue pcm(std::span<const float> values) { return of<float>(DType::pcm, values); }

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  std::span<const std::byte> bytes() const { return {in_place_ ? held_ : data_, size_}; }
  // Keeps bytes() alive; null where they are held in place.
  const std::shared_ptr<const void>& owner() const { return owner_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes().data()), bytes().size() / sizeof(T)};
  }
  bool is_signal() const { return dims_.empty() && bytes().empty(); }
  std::size_t size_bytes() const { return bytes().size(); }

 private:
  void hold(std::span<const std::byte> bytes) {
    size_ = bytes.size();
    if (size_ > 0) std::memcpy(held_, bytes.data(), size_);
  }
  void share(std::shared_ptr<const void> owner, std::span<const std::byte> bytes) {
    in_place_ = false;
    size_ = bytes.size();
    data_ = bytes.data();
    owner_ = std::move(owner);
  }

  DType dtype_ = DType::bytes;
  bool in_place_ = true;
  Dims dims_;
  std::size_t size_ = 0;
  std::shared_ptr<const void> owner_;
  union {
    alignas(8) std::byte held_[kMostInPlace] = {};
    const std::byte* data_;  // where not in place
  };
};

}  // namespace mstar
