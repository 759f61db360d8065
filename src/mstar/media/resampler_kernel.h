// The inner product of the resampler.
#pragma once

#include <cstddef>

namespace mstar {

constexpr std::size_t kResamplerLanes = 8;

// Sum of window[i] * taps[i], i < num_taps. `taps` holds zeros up to a multiple of kResamplerLanes; `window` is not
// read past num_taps. Fused multiply-adds into eight partial sums by i mod 8, added in one fixed order: the same bits
// on every instruction set (and those of libswresample's own kernel for AVX2).
float resampler_dot(const float* window, const float* taps, std::size_t num_taps);

}  // namespace mstar
