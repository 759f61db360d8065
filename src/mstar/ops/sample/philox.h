// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): Philox 4x32 with 10 rounds, for the host and
// for kernels.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MSTAR_HOST_AND_DEVICE __host__ __device__
#else
#define MSTAR_HOST_AND_DEVICE
#endif

namespace mstar {

// Four random words for (key, counter).
struct PhiloxWords {
  std::uint32_t word[4];
};

MSTAR_HOST_AND_DEVICE inline PhiloxWords philox(std::uint64_t key, std::uint64_t counter_low,
                                                std::uint64_t counter_high = 0) {
  constexpr std::uint64_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  PhiloxWords c{{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
                 static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = kMultiply0 * c.word[0], b = kMultiply1 * c.word[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.word[1] ^ k0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.word[3] ^ k1, static_cast<std::uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// In [0, 1): the random number of a draw, the same on every backend.
MSTAR_HOST_AND_DEVICE inline double philox_uniform(std::uint64_t seed, std::uint64_t offset) {
  const PhiloxWords words = philox(seed, offset);
  const std::uint64_t bits = static_cast<std::uint64_t>(words.word[1]) << 32 | words.word[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace mstar

#undef MSTAR_HOST_AND_DEVICE
