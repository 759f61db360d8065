// The sizes of a value's axes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "mstar/base/check.h"

namespace mstar {

// At most kMost, held in place: a value is made and copied for each token of each request. Whoever reads sizes from
// outside looks at kMost first.
class Dims {
 public:
  static constexpr std::size_t kMost = 6;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> dims) : Dims(std::span(dims.begin(), dims.size())) {}
  Dims(std::span<const std::int64_t> dims)
      : count_(static_cast<std::uint8_t>(dims.size())) {  // NOLINT: implicit on purpose
    MSTAR_CHECK(dims.size() <= kMost);
    std::copy(dims.begin(), dims.end(), at_.begin());
  }
  Dims(const std::vector<std::int64_t>& dims) : Dims(std::span(dims)) {}  // NOLINT: implicit on purpose

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const std::int64_t* begin() const { return at_.data(); }
  const std::int64_t* end() const { return at_.data() + count_; }
  std::int64_t front() const { return at_[0]; }
  std::int64_t operator[](std::size_t axis) const { return at_[axis]; }
  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  std::array<std::int64_t, kMost> at_{};
  std::uint8_t count_ = 0;
};

}  // namespace mstar
