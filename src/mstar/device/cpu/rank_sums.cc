#include "mstar/device/cpu/rank_sums.h"

#include <algorithm>

namespace mstar {
namespace {

struct FloatNumber {
  using Stored = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};
struct HalfNumber {
  using Stored = Half;
  static float widen(Half value) { return to_float(value); }
  static Half narrow(float value) { return to_half(value); }
};
struct BFloat16Number {
  using Stored = BFloat16;
  static float widen(BFloat16 value) { return to_float(value); }
  static BFloat16 narrow(float value) { return to_bfloat16(value); }
};

template <class Number>
void sum_range(std::span<const std::byte* const> from, std::span<std::byte* const> to, std::size_t begin,
               std::size_t end) {
  constexpr std::size_t kChunk = 1024;
  using Stored = typename Number::Stored;
  float sums[kChunk];
  for (std::size_t at = begin; at < end; at += kChunk) {
    const std::size_t count = std::min(kChunk, end - at);
    const auto* const first = reinterpret_cast<const Stored*>(from.front()) + at;
    for (std::size_t i = 0; i < count; ++i) sums[i] = Number::widen(first[i]);
    for (const std::byte* const each : from.subspan(1)) {
      const auto* const more = reinterpret_cast<const Stored*>(each) + at;
      for (std::size_t i = 0; i < count; ++i) sums[i] += Number::widen(more[i]);
    }
    for (std::byte* const each : to) {
      auto* const out = reinterpret_cast<Stored*>(each) + at;
      for (std::size_t i = 0; i < count; ++i) out[i] = Number::narrow(sums[i]);
    }
  }
}

}  // namespace

bool can_sum(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

void sum_in_rank_order(std::span<const std::byte* const> from, std::span<std::byte* const> to, std::size_t begin,
                       std::size_t end, DType dtype) {
  if (dtype == DType::f32) return sum_range<FloatNumber>(from, to, begin, end);
  if (dtype == DType::bf16) return sum_range<BFloat16Number>(from, to, begin, end);
  sum_range<HalfNumber>(from, to, begin, end);
}

SumShare share_of(std::size_t count, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank);
  const std::size_t share = (count + ranks * 16 - 1) / (ranks * 16) * 16;
  const std::size_t begin = std::min(count, own * share);
  return {begin, std::min(count, begin + share)};
}

}  // namespace mstar
