// The median of seven numbers, for both backends.
#pragma once

#ifdef __CUDACC__
#define MSTAR_BOTH_SIDES __host__ __device__
#else
#define MSTAR_BOTH_SIDES
#endif

namespace mstar {

// Thirteen exchanges (N. Devillard, "Fast median search", 1998), of which compilers make minima and maxima.
MSTAR_BOTH_SIDES inline float median_of_seven(float a, float b, float c, float d, float e, float f, float g) {
  const auto exchange = [](float& low, float& high) {
    const float least = low < high ? low : high;
    high = low < high ? high : low;
    low = least;
  };
  exchange(a, f);
  exchange(a, d);
  exchange(b, g);
  exchange(c, e);
  exchange(a, b);
  exchange(d, f);
  exchange(c, g);
  exchange(c, d);
  exchange(d, g);
  exchange(e, f);
  exchange(b, e);
  exchange(b, d);
  exchange(d, e);
  return d;
}

}  // namespace mstar
