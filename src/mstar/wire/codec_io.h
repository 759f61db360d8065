// Plain structs as bytes and back: little-endian, fields in their order, lists and strings with their length. Inside of
// codecs.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/base/value.h"
#include "mstar/decl/plan.h"
#include "mstar/decl/request.h"

namespace mstar::wire {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

// Bytes of a value of this shape; -1 when the shape is no shape.
inline std::int64_t shape_bytes(DType dtype, std::span<const std::int64_t> dims) {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
  for (const std::int64_t dim : dims)
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return -1;
  return bytes;
}

inline bool is_whole(DType dtype, std::span<const std::int64_t> dims, std::size_t size_bytes) {
  if (dims.empty() && size_bytes == 0) return true;  // a signal
  return shape_bytes(dtype, dims) == static_cast<std::int64_t>(size_bytes);
}

// The last enumerator of each enum that travels.
template <class E>
inline constexpr E kLast = E();
template <>
inline constexpr Code kLast<Code> = Code::internal;
template <>
inline constexpr DType kLast<DType> = DType::pcm;
template <>
inline constexpr decl::Modality kLast<decl::Modality> = decl::Modality::video_frame;
template <>
inline constexpr decl::LoopEnd kLast<decl::LoopEnd> = decl::LoopEnd::stop;

template <class T>
concept Number = std::integral<T> || std::floating_point<T>;

// `Fields<Io>::of(io, struct)` names the fields of each struct, once for writing and reading; Io::Ref<T> is const T&
// for the writer and T& for the reader.
template <template <class> class Fields>
class BasicWriter {
 public:
  template <class T>
  using Ref = const T&;

  template <class... T>
  void operator()(const T&... parts) {
    (put(parts), ...);
  }
  std::string bytes;
  std::optional<Error> error;

 private:
  template <Number T>
  void put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <class E>
  requires std::is_enum_v<E>
  void put(E value) { put(static_cast<std::uint8_t>(value)); }
  template <class Tag, class Rep>
  void put(Id<Tag, Rep> id) {
    put(id.value);
  }
  void put_size(std::size_t size) {
    if (size > UINT32_MAX) error = internal_error("a message with a list of more than 4 Gi entries");
    put(static_cast<std::uint32_t>(size));
  }
  void put(const std::string& text) {
    put_size(text.size());
    bytes += text;
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put_size(list.size());
    for (const T& each : list) put(each);
  }
  template <class T, std::size_t n>
  void put(const std::array<T, n>& list) {
    for (const T& each : list) put(each);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& pair) {
    put(pair.first);
    put(pair.second);
  }
  template <class K, class V, class Less>
  void put(const std::map<K, V, Less>& map) {
    put_size(map.size());
    for (const auto& [key, value] : map) {
      put(key);
      put(value);
    }
  }
  template <class... T>
  void put(const std::variant<T...>& value) {
    put(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& each) { this->put(each); }, value);  // clang 14 overlooks a plain put
  }
  void put(const Dims& dims) {
    put_size(dims.size());
    for (const std::int64_t each : dims) put(each);
  }
  void put(const Params& params) { put(params.values()); }
  void put(const std::shared_ptr<const decl::RequestParams>& params) { put(params ? *params : decl::RequestParams()); }
  void put(const HostValue& value) {
    if (!is_whole(value.dtype(), value.dims(), value.size_bytes()))
      error = internal_error("a value of " + std::to_string(value.size_bytes()) + " bytes does not fill its shape");
    put(value.dtype());
    put(value.dims());
    put(static_cast<std::uint64_t>(value.size_bytes()));
    bytes.append(reinterpret_cast<const char*>(value.bytes().data()), value.size_bytes());
  }
  void put(const Value& value) {
    auto host = value.to_host();
    if (!host) error = std::move(host.error());
    put(host ? *host : HostValue());
  }
  template <class T>
  requires std::is_class_v<T>
  void put(const T& message) { Fields<BasicWriter>::of(*this, message); }
};

// For any bytes. Every length is checked against what is left before anything is sized by it.
template <template <class> class Fields>
class BasicReader {
 public:
  template <class T>
  using Ref = T&;

  explicit BasicReader(std::span<const std::byte> bytes) : left_(bytes) {}
  // After a failure every part reads as its default and every list as empty.
  template <class... T>
  void operator()(T&... parts) {
    (get(parts), ...);
  }
  bool failed() const { return failed_; }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    if (failed_ || size > left_.size()) {
      failed_ = true;
      return {};
    }
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  template <Number T>
  void get(T& value) {
    const auto from = take(sizeof(T));
    if (!failed_) std::memcpy(&value, from.data(), sizeof(T));
  }
  void get(bool& value) {
    std::uint8_t byte = 0;
    get(byte);
    failed_ |= byte > 1;
    value = byte == 1;
  }
  template <class E>
  requires std::is_enum_v<E>
  void get(E& value) {
    std::uint8_t byte = 0;
    get(byte);
    failed_ |= byte > static_cast<std::uint8_t>(kLast<E>);
    if (!failed_) value = static_cast<E>(byte);
  }
  template <class Tag, class Rep>
  void get(Id<Tag, Rep>& id) {
    get(id.value);
  }
  std::size_t get_size() {
    std::uint32_t size = 0;
    get(size);
    // Every entry takes a byte at least, so a larger count is a lie.
    failed_ |= size > left_.size();
    return failed_ ? 0 : size;
  }
  void get(std::string& text) {
    const auto from = take(get_size());
    text.assign(reinterpret_cast<const char*>(from.data()), from.size());
  }
  template <class T>
  void get(std::vector<T>& list) {
    for (std::size_t left = get_size(); left > 0 && !failed_; --left) get(list.emplace_back());
  }
  template <class T, std::size_t n>
  void get(std::array<T, n>& list) {
    // Into a local: g++ 12 takes the unrolled loop for a write past the array.
    for (std::size_t i = 0; i < n; ++i) {
      T each{};
      get(each);
      list[i] = std::move(each);
    }
  }
  template <class A, class B>
  void get(std::pair<A, B>& pair) {
    get(pair.first);
    get(pair.second);
  }
  template <class K, class V, class Less>
  void get(std::map<K, V, Less>& map) {
    for (std::size_t left = get_size(); left > 0 && !failed_; --left) {
      K key{};
      V value{};
      get(key);
      get(value);
      map.insert_or_assign(std::move(key), std::move(value));
    }
  }
  template <class... T>
  void get(std::variant<T...>& value) {
    std::uint8_t index = 0;
    get(index);
    failed_ |= index >= sizeof...(T);
    if (failed_) return;
    get_alternative<0>(value, index);
  }
  template <std::size_t i, class... T>
  void get_alternative(std::variant<T...>& value, std::size_t index) {
    if constexpr (i < sizeof...(T)) {
      if (index != i) return get_alternative<i + 1>(value, index);
      get(value.template emplace<i>());
    }
  }
  void get(Params& params) {
    std::map<std::string, ParamValue, std::less<>> values;
    get(values);
    for (auto& [name, value] : values) params.set(name, std::move(value));
  }
  void get(std::shared_ptr<const decl::RequestParams>& params) {
    auto read = std::make_shared<decl::RequestParams>();
    get(*read);
    params = std::move(read);
  }
  void get(HostValue& value) {
    DType dtype = DType::bytes;
    std::vector<std::int64_t> dims;
    std::uint64_t size = 0;
    get(dtype);
    get(dims);
    get(size);
    failed_ |= size > left_.size() || dims.size() > Dims::kMost || !is_whole(dtype, dims, size);
    const auto from = take(failed_ ? 0 : size);
    if (!failed_) value = HostValue(dtype, dims, {from.begin(), from.end()});
  }
  void get(Value& value) { get(value.host); }
  template <class T>
  requires std::is_class_v<T>
  void get(T& message) { Fields<BasicReader>::of(*this, message); }

  std::span<const std::byte> left_;
  bool failed_ = false;
};

}  // namespace mstar::wire
