// Bounds-checked little-endian reading of outside bytes: every parser of a binary format sits on this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "mstar/base/result.h"

namespace mstar {

// A cursor over borrowed bytes. A read past the end is an Error that names what was being read; nothing is ever sized
// by an unchecked length.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  template <class T>
  requires std::is_arithmetic_v<T> Result<T> read(std::string_view what) {
    if (remaining() < sizeof(T)) return short_by(what, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::span<const std::byte>> take(std::uint64_t count, std::string_view what) {
    if (remaining() < count) return short_by(what, count);
    const auto out = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return out;
  }

 private:
  Error short_by(std::string_view what, std::uint64_t wanted) const {
    return bad_model("file ends inside " + std::string(what) + ": " + std::to_string(wanted) +
                     " bytes wanted at offset " + std::to_string(position_) + ", " + std::to_string(remaining()) +
                     " left");
  }

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

}  // namespace mstar
