#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/media/resampler_kernel.cc"
#include "mstar/media/resampler_kernel.h"

#include <algorithm>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

float dot(const float* window, const float* taps, std::size_t num_taps) {
  constexpr hn::CappedTag<float, kResamplerLanes> tag;
  using V = hn::Vec<decltype(tag)>;
  const std::size_t lanes = hn::Lanes(tag);
  const std::size_t num_registers = kResamplerLanes / lanes;
  HWY_ALIGN float sums[kResamplerLanes];
  for (std::size_t r = 0; r < num_registers; ++r) {
    V sum = hn::Zero(tag);
    std::size_t i = r * lanes;
    for (; i + lanes <= num_taps; i += kResamplerLanes)
      sum = hn::MulAdd(hn::LoadU(tag, window + i), hn::LoadU(tag, taps + i), sum);
    if (i < num_taps) {
      HWY_ALIGN float rest[kResamplerLanes] = {};
      std::copy(window + i, window + num_taps, rest);
      sum = hn::MulAdd(hn::Load(tag, rest), hn::LoadU(tag, taps + i), sum);
    }
    hn::Store(sum, tag, sums + r * lanes);
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(dot);

float resampler_dot(const float* window, const float* taps, std::size_t num_taps) {
  return HWY_DYNAMIC_DISPATCH(dot)(window, taps, num_taps);
}

}  // namespace mstar
#endif
