#include <utility>

#include "hwy/base.h"
#include "mstar/ops/cpu_target.h"
#include "mstar/ops/linear/linear_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mstar {
namespace {
constexpr int kPanel = LinearWeight::kPanel;
}
}  // namespace mstar

// Highway 1.0.3 has no dot product of bytes, so these are intrinsics, chosen by cpu_target().
#if defined(__x86_64__)

HWY_PUSH_ATTRIBUTES("avx2,fma")
namespace mstar::i8_avx2 {
namespace {

struct Isa {
  using Vector = __m256i;
  static constexpr int kLanes = 8, kRows = 6, kVectors = 1;
  static constexpr int few_panels(int) { return 1; }
  static constexpr int few_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
  // vpmaddubsw saturates sums of two u8 x i8 products unless the unsigned factor times the other stays within 128 *
  // 127: |w| <= 128 is made the unsigned one, and w's sign goes to the code, |code| <= 127. So it is exact for every
  // weight.
  struct Weights {
    __m256i value, magnitude;
  };
  static Vector zero() { return _mm256_setzero_si256(); }
  static Vector load(const std::int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store(std::int32_t* to, Vector v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }
  static Weights weights(const std::int8_t* from) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {value, _mm256_abs_epi8(value)};
  }
  static __m256i codes(std::uint32_t word) { return _mm256_set1_epi32(static_cast<int>(word)); }
  static Vector add(Vector sums, __m256i x, const Weights& w) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.value));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

#include "mstar/ops/linear/linear_i8-inl.h"

}  // namespace
}  // namespace mstar::i8_avx2
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
namespace mstar::i8_avx512_vnni {
namespace {

struct Isa {
  using Vector = __m512i;
  using Weights = __m512i;
  static constexpr int kLanes = 16, kRows = 12, kVectors = 2;
  static constexpr int few_panels(int rows) { return rows == 1 ? 4 : rows <= 4 ? 2 : 1; }
  static constexpr int few_vectors(int) { return 2; }
  static Vector zero() { return _mm512_setzero_si512(); }
  static Vector load(const std::int32_t* from) { return _mm512_loadu_si512(from); }
  static void store(std::int32_t* to, Vector v) { _mm512_storeu_si512(to, v); }
  static Weights weights(const std::int8_t* from) { return _mm512_loadu_si512(from); }
  static __m512i codes(std::uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }
  static Vector add(Vector sums, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sums, x, w); }
};

#include "mstar/ops/linear/linear_i8-inl.h"

}  // namespace
}  // namespace mstar::i8_avx512_vnni
HWY_POP_ATTRIBUTES

namespace mstar {
const LinearTiles& i8_tiles() {
  return cpu_target() == CpuTarget::avx512_vnni ? i8_avx512_vnni::kTiles : i8_avx2::kTiles;
}
bool i8_words_are_biased() { return cpu_target() == CpuTarget::avx512_vnni; }
}  // namespace mstar

#else

namespace mstar::i8_plain {
namespace {

struct Isa {
  using Vector = std::int32_t;
  using Weights = const std::int8_t*;
  static constexpr int kLanes = 1, kRows = 1, kVectors = 1;
  static constexpr int few_panels(int) { return 1; }
  static constexpr int few_vectors(int) { return 1; }
  static Vector zero() { return 0; }
  static Vector load(const std::int32_t* from) { return *from; }
  static void store(std::int32_t* to, Vector v) { *to = v; }
  static Weights weights(const std::int8_t* from) { return from; }
  static std::uint32_t codes(std::uint32_t word) { return word; }
  static Vector add(Vector sums, std::uint32_t x, Weights w) {
    for (int i = 0; i < 4; ++i) sums += static_cast<std::int8_t>(x >> (8 * i)) * w[i];
    return sums;
  }
};

#include "mstar/ops/linear/linear_i8-inl.h"

}  // namespace
}  // namespace mstar::i8_plain

namespace mstar {
const LinearTiles& i8_tiles() { return i8_plain::kTiles; }
bool i8_words_are_biased() { return false; }
}  // namespace mstar

#endif
