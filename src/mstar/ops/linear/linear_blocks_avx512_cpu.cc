#include <utility>

#include "hwy/base.h"
#include "mstar/ops/linear/linear_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define BLOCKS_INLINE inline __attribute__((always_inline))

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
namespace mstar::blocks_avx512_vnni {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

struct Isa {
  using Codes = __m512i;
  using Sums = __m512i;
  using Floats = __m512;
  static constexpr int kLanes = 16, kKeptSums = 12, kWideRows = 6, kWideVectors = 2;
  static constexpr bool kTakesOffset = false;
  static constexpr int few_vectors(int) { return 2; }

  static Codes load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
  static void store(std::uint8_t* to, Codes v) { _mm512_storeu_si512(to, v); }
  static Codes low_nibbles(Codes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static Codes high_nibbles(Codes v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
  template <int kShift, int kMask>
  static Codes merge(Codes codes, Codes high) {
    if constexpr (kShift > 0) high = _mm512_slli_epi16(high, kShift);
    if constexpr (kShift < 0) high = _mm512_srli_epi16(high, -kShift);
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(codes, high, _mm512_set1_epi8(kMask), kOrAnd);
  }
  static Sums word(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Sums zero_sums() { return _mm512_setzero_si512(); }
  template <bool>
  static Sums add(Sums sums, Codes codes, Sums x) {
    return _mm512_dpbusd_epi32(sums, codes, x);
  }
  static Floats to_floats(Sums v) { return _mm512_cvtepi32_ps(v); }
  static Floats floats(std::uint32_t word) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(word))); }
  static Floats zero_floats() { return _mm512_setzero_ps(); }
  static Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
  static void store_floats(float* to, Floats v) { _mm512_storeu_ps(to, v); }
  static Floats halves(const std::uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats unsigned_bytes(const std::uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats signed_bytes(const std::uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
};

#include "mstar/ops/linear/linear_blocks-inl.h"

}  // namespace

const LinearTiles& tiles(BlockFormat format) { return kTiles[static_cast<int>(format)]; }
const LinearTiles& wide_tiles(BlockFormat format) { return kWideTiles[static_cast<int>(format)]; }

}  // namespace mstar::blocks_avx512_vnni
HWY_POP_ATTRIBUTES

#endif
