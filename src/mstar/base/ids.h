// Distinct id types: a RequestId cannot be passed where a WorkerId is wanted.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace mstar {

template <class Tag, class Rep = std::uint32_t>
struct Id {
  static constexpr Rep kNone = std::numeric_limits<Rep>::max();
  Rep value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr bool valid() const { return value != kNone; }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

// Never reused in one run of a server.
using RequestId = Id<struct RequestTag, std::uint64_t>;
using WorkerId = Id<struct WorkerTag>;
using TensorId = Id<struct TensorTag, std::uint64_t>;

}  // namespace mstar

template <class Tag, class Rep>
struct std::hash<mstar::Id<Tag, Rep>> {
  std::size_t operator()(const mstar::Id<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};
