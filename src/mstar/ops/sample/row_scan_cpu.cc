#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/sample/row_scan_cpu.cc"
#include <algorithm>
#include <limits>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/sample/row_scan.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

std::size_t find_largest(const float* x, std::int64_t count) {
  const V lowest = hn::Set(kF, -std::numeric_limits<float>::infinity());
  // Several maxima in flight: one would wait for itself.
  V top[4] = {lowest, lowest, lowest, lowest};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) top[j] = hn::Max(top[j], hn::LoadU(kF, x + i + j * kLanes));
  V most = hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]));
  for (; i < count; i += kLanes) {
    const auto lanes = static_cast<std::size_t>(HWY_MIN(count - i, std::int64_t{kLanes}));
    const auto mask = hn::FirstN(kF, lanes);
    most = hn::Max(most, hn::IfThenElse(mask, hn::MaskedLoad(mask, kF, x + i), lowest));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(kF, most));
  const V wanted = hn::Set(kF, largest);
  for (i = 0; i + kLanes <= count; i += kLanes)
    if (!hn::AllFalse(kF, hn::Eq(hn::LoadU(kF, x + i), wanted))) break;
  for (; i < count; ++i)
    if (x[i] == largest) return static_cast<std::size_t>(i);
  return 0;
}

float block_sum(const float* x, std::int64_t count, float largest, float factor) {
  const V top = hn::Set(kF, largest), scale = hn::Set(kF, factor);
  return row_sum(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V weight = exp_of(hn::Mul(hn::Sub(load_up_to(x + i, lanes), top), scale));
    return lanes == kLanes ? weight : hn::IfThenElseZero(hn::FirstN(kF, static_cast<std::size_t>(lanes)), weight);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(find_largest);
HWY_EXPORT(block_sum);

std::size_t largest_index(std::span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(find_largest)(logits.data(), static_cast<std::int64_t>(logits.size()));
}

double sum_of_exp(std::span<const float> logits, float largest, float inverse_temperature) {
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); i += kScanBlock)
    sum += HWY_DYNAMIC_DISPATCH(block_sum)(logits.data() + i,
                                           static_cast<std::int64_t>(std::min(kScanBlock, logits.size() - i)), largest,
                                           inverse_temperature);
  return sum;
}

}  // namespace mstar
#endif
