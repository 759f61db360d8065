#include <utility>

#include "hwy/base.h"
#include "mstar/ops/linear/linear_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define BLOCKS_INLINE inline __attribute__((always_inline))

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace mstar::blocks_avx2 {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

struct Isa {
  using Codes = __m256i;
  using Sums = __m256i;
  using Floats = __m256;
  static constexpr int kLanes = 8, kKeptSums = 4, kWideRows = 6, kWideVectors = 1;
  static constexpr bool kTakesOffset = true;
  static constexpr int few_vectors(int rows) { return rows == 1 ? 2 : 1; }

  static Codes load(const std::uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store(std::uint8_t* to, Codes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }
  static Codes low_nibbles(Codes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static Codes high_nibbles(Codes v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
  // codes | (high shifted left by kShift, or right where it is negative) & kMask in every byte.
  template <int kShift, int kMask>
  static Codes merge(Codes codes, Codes high) {
    if constexpr (kShift > 0) high = _mm256_slli_epi16(high, kShift);
    if constexpr (kShift < 0) high = _mm256_srli_epi16(high, -kShift);
    return _mm256_or_si256(codes, _mm256_and_si256(high, _mm256_set1_epi8(kMask)));
  }
  static Sums word(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static Sums zero_sums() { return _mm256_setzero_si256(); }
  // vpmaddubsw saturates sums of two products beyond 2^15. Codes up to 63 cannot come there; of those of eight bits the
  // value's magnitude, at most 128, is the unsigned factor and its sign goes to x, at most 127.
  template <bool kSigned>
  static Sums add(Sums sums, Codes codes, Sums x) {
    __m256i pairs;
    if constexpr (kSigned) {
      const __m256i value = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(x, value));
    } else {
      pairs = _mm256_maddubs_epi16(codes, x);
    }
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static Floats to_floats(Sums v) { return _mm256_cvtepi32_ps(v); }
  static Floats floats(std::uint32_t word) { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(word))); }
  static Floats zero_floats() { return _mm256_setzero_ps(); }
  static Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
  static void store_floats(float* to, Floats v) { _mm256_storeu_ps(to, v); }
  static Floats halves(const std::uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats unsigned_bytes(const std::uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats signed_bytes(const std::uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
};

#include "mstar/ops/linear/linear_blocks-inl.h"

}  // namespace

const LinearTiles& tiles(BlockFormat format) { return kTiles[static_cast<int>(format)]; }
const LinearTiles& wide_tiles(BlockFormat format) { return kWideTiles[static_cast<int>(format)]; }

}  // namespace mstar::blocks_avx2
HWY_POP_ATTRIBUTES

#endif
