#include <utility>

#include "mstar/ops/cpu_target.h"
#include "mstar/ops/linear/linear_blocks.h"

#if defined(__x86_64__)

namespace mstar {

// Highway 1.0.3 has no dot product of bytes, so these are intrinsics, chosen by cpu_target().
namespace blocks_avx2 {
const LinearTiles& tiles(BlockFormat format);
const LinearTiles& wide_tiles(BlockFormat format);
}  // namespace blocks_avx2
namespace blocks_avx512_vnni {
const LinearTiles& tiles(BlockFormat format);
const LinearTiles& wide_tiles(BlockFormat format);
}  // namespace blocks_avx512_vnni

const LinearTiles& block_tiles(BlockFormat format) {
  return cpu_target() == CpuTarget::avx512_vnni ? blocks_avx512_vnni::tiles(format) : blocks_avx2::tiles(format);
}
const LinearTiles& wide_block_tiles(BlockFormat format) {
  return cpu_target() == CpuTarget::avx512_vnni ? blocks_avx512_vnni::wide_tiles(format)
                                                : blocks_avx2::wide_tiles(format);
}

}  // namespace mstar

#else

#include <bit>
#include <cmath>
#include <cstring>

#define BLOCKS_INLINE inline

namespace mstar::blocks_plain {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

struct Isa {
  using Codes = std::uint32_t;
  using Sums = std::int32_t;
  using Floats = float;
  static constexpr int kLanes = 1, kKeptSums = 4, kWideRows = 4, kWideVectors = 1;
  static constexpr bool kTakesOffset = true;
  static constexpr int few_vectors(int) { return 1; }

  static Codes load(const std::uint8_t* from) {
    Codes out;
    std::memcpy(&out, from, 4);
    return out;
  }
  static void store(std::uint8_t* to, Codes v) { std::memcpy(to, &v, 4); }
  static Codes low_nibbles(Codes v) { return v & 0x0f0f0f0fu; }
  static Codes high_nibbles(Codes v) { return v >> 4 & 0x0f0f0f0fu; }
  template <int kShift, int kMask>
  static Codes merge(Codes codes, Codes high) {
    if constexpr (kShift > 0) high <<= kShift;
    if constexpr (kShift < 0) high >>= -kShift;
    return codes | (high & 0x01010101u * static_cast<unsigned>(kMask));
  }
  static Sums word(std::uint32_t value) { return static_cast<Sums>(value); }
  static Sums zero_sums() { return 0; }
  template <bool kSigned>
  static Sums add(Sums sums, Codes codes, Sums x) {
    for (int i = 0; i < 4; ++i)
      sums += (static_cast<int>(codes >> 8 * i & 255) - (kSigned ? 128 : 0)) *
              static_cast<std::int8_t>(static_cast<std::uint32_t>(x) >> 8 * i);
    return sums;
  }
  static Floats to_floats(Sums v) { return static_cast<float>(v); }
  static Floats floats(std::uint32_t word) { return std::bit_cast<float>(word); }
  static Floats zero_floats() { return 0; }
  static Floats load_floats(const float* from) { return *from; }
  static void store_floats(float* to, Floats v) { *to = v; }
  static Floats halves(const std::uint8_t* from) {
    Half half;
    std::memcpy(&half.bits, from, 2);
    return to_float(half);
  }
  static Floats unsigned_bytes(const std::uint8_t* from) { return static_cast<float>(*from); }
  static Floats signed_bytes(const std::uint8_t* from) { return static_cast<float>(static_cast<std::int8_t>(*from)); }
  static Floats mul(Floats a, Floats b) { return a * b; }
  static Floats fma(Floats a, Floats b, Floats c) { return std::fma(a, b, c); }
};

#include "mstar/ops/linear/linear_blocks-inl.h"

}  // namespace
}  // namespace mstar::blocks_plain

namespace mstar {
const LinearTiles& block_tiles(BlockFormat format) { return blocks_plain::kTiles[static_cast<int>(format)]; }
const LinearTiles& wide_block_tiles(BlockFormat format) { return blocks_plain::kWideTiles[static_cast<int>(format)]; }
}  // namespace mstar

#endif
