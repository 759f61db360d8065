// Vectors for the CPU kernels, once per instruction set (see "Highway" in docs/add-an-op.md). Include it after
// hwy/foreach_target.h; everything is in mstar::HWY_NAMESPACE.
//
// The same bits on every instruction set: fused multiply-adds are explicit, and sums over a row go to sixteen partial
// sums by index mod 16, whatever the register width, added in one fixed order.

#include <cstdint>

#include "hwy/highway.h"
#include "mstar/base/dtype.h"
#include "mstar/ops/activation.h"

#if defined(MSTAR_OPS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MSTAR_OPS_SIMD_INL_H_
#undef MSTAR_OPS_SIMD_INL_H_
#else
#define MSTAR_OPS_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using I = hn::RebindToSigned<F>;
using V = hn::Vec<F>;
constexpr F kF;
constexpr I kI;
constexpr int kLanes = HWY_MIN(16, HWY_LANES(float));
// Registers that sixteen floats take.
constexpr int kSixteen = 16 / kLanes;

HWY_INLINE V load_wide(const float* from) { return hn::LoadU(kF, from); }
HWY_INLINE V load_wide(const Half* from) {
  const hn::Rebind<hwy::float16_t, F> half;
  return hn::PromoteTo(kF, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE V load_wide(const BFloat16* from) {
  const hn::Rebind<std::uint16_t, F> half;
  const hn::RebindToUnsigned<F> whole;
  return hn::BitCast(
      kF, hn::ShiftLeft<16>(hn::PromoteTo(whole, hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from)))));
}
// Rounds to nearest even, as to_half and to_bfloat16 do.
HWY_INLINE void store_narrow(V value, float* to) { hn::StoreU(value, kF, to); }
HWY_INLINE void store_narrow(V value, Half* to) {
  const hn::Rebind<hwy::float16_t, F> half;
  hn::StoreU(hn::DemoteTo(half, value), half, reinterpret_cast<hwy::float16_t*>(to));
}
HWY_INLINE void store_narrow(V value, BFloat16* to) {
  const hn::RebindToUnsigned<F> whole;
  const hn::Rebind<std::uint16_t, F> half;
  const auto bits = hn::BitCast(whole, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(whole, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(whole, 0x7fff))));
  const auto quiet = hn::ShiftRight<16>(hn::Or(bits, hn::Set(whole, 0x400000)));
  const auto kept = hn::IfThenElse(hn::RebindMask(whole, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(kI, kept)), half, reinterpret_cast<std::uint16_t*>(to));
}
HWY_INLINE V load_first(const float* from, std::size_t count) {
  return hn::MaskedLoad(hn::FirstN(kF, count), kF, from);
}
HWY_INLINE void store_first(V value, float* to, std::size_t count) {
  hn::BlendedStore(value, hn::FirstN(kF, count), kF, to);
}

// e^r for |r| <= ln 2 / 2 (Cephes).
HWY_INLINE V exp_of_remainder(V r) {
  V p = hn::Set(kF, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(kF, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(kF, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(kF, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(kF, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(kF, 5.0000001201e-1f));
  return hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(kF, 1.0f));
}

// e^x to about 1 ulp; 0 below -87.33, large but finite above 88.37; NaN stays NaN.
HWY_INLINE V exp_of(V x) {
  const V lowest = hn::Set(kF, -87.336f);
  const V clamped = hn::Min(hn::Max(x, lowest), hn::Set(kF, 88.37f));
  const V n = hn::Round(hn::Mul(clamped, hn::Set(kF, 1.44269504088896341f)));
  V r = hn::NegMulAdd(n, hn::Set(kF, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(kF, -2.12194440e-4f), r);
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(kI, n));
  const V scaled = hn::BitCast(kF, hn::Add(hn::BitCast(kI, exp_of_remainder(r)), exponent));
  // Max and Min drop a NaN on x86: it comes back here.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(hn::Lt(x, lowest), scaled));
}

// 2^x for x <= 0 (Cephes exp2f): about 1e-38 below -126, also for NaN.
HWY_INLINE V exp2_below_zero(V x) {
  const V clamped = hn::Max(x, hn::Set(kF, -126.0f));
  const V n = hn::Round(clamped);
  const V f = hn::Sub(clamped, n);
  V p = hn::Set(kF, 1.535336188319500e-4f);
  p = hn::MulAdd(p, f, hn::Set(kF, 1.339887440266574e-3f));
  p = hn::MulAdd(p, f, hn::Set(kF, 9.618437357674640e-3f));
  p = hn::MulAdd(p, f, hn::Set(kF, 5.550332471162809e-2f));
  p = hn::MulAdd(p, f, hn::Set(kF, 2.402264791363012e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, 6.931472028550421e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, 1.0f));
  return hn::BitCast(kF, hn::Add(hn::BitCast(kI, p), hn::ShiftLeft<23>(hn::ConvertTo(kI, n))));
}

// erf by the rational function that XLA and Eigen use, within 2 ulp of 1 over the whole range.
HWY_INLINE V erf_of(V x) {
  const V c = hn::Min(hn::Max(x, hn::Set(kF, -4.0f)), hn::Set(kF, 4.0f));
  const V t = hn::Mul(c, c);
  V p = hn::Set(kF, -2.72614225801306e-10f);
  p = hn::MulAdd(p, t, hn::Set(kF, 2.77068142495902e-08f));
  p = hn::MulAdd(p, t, hn::Set(kF, -2.10102402082508e-06f));
  p = hn::MulAdd(p, t, hn::Set(kF, -5.69250639462346e-05f));
  p = hn::MulAdd(p, t, hn::Set(kF, -7.34990630326855e-04f));
  p = hn::MulAdd(p, t, hn::Set(kF, -2.95459980854025e-03f));
  p = hn::MulAdd(p, t, hn::Set(kF, -1.60960333262415e-02f));
  V q = hn::Set(kF, -1.45660718464996e-05f);
  q = hn::MulAdd(q, t, hn::Set(kF, -2.13374055278905e-04f));
  q = hn::MulAdd(q, t, hn::Set(kF, -1.68282697438203e-03f));
  q = hn::MulAdd(q, t, hn::Set(kF, -7.37332916720468e-03f));
  q = hn::MulAdd(q, t, hn::Set(kF, -1.42647390514189e-02f));
  return hn::Div(hn::Mul(c, p), q);
}

// log10 of positive normal x, to about 1 ulp (Cephes logf, its parts scaled by log10 e and log10 2).
HWY_INLINE V log10_of(V x) {
  const auto bits = hn::BitCast(kI, x);
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
  const auto shifted = hn::Sub(bits, hn::Set(kI, 0x3f3504f3));
  const V e = hn::ConvertTo(kF, hn::ShiftRight<23>(shifted));
  const V m = hn::BitCast(kF, hn::Add(hn::And(shifted, hn::Set(kI, 0x007fffff)), hn::Set(kI, 0x3f3504f3)));
  const V f = hn::Sub(m, hn::Set(kF, 1.0f));
  const V square = hn::Mul(f, f);
  V p = hn::Set(kF, 7.0376836292e-2f);
  p = hn::MulAdd(p, f, hn::Set(kF, -1.1514610310e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, 1.1676998740e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, -1.2420140846e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, 1.4249322787e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, -1.6668057665e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, 2.0000714765e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, -2.4999993993e-1f));
  p = hn::MulAdd(p, f, hn::Set(kF, 3.3333331174e-1f));
  const V tail = hn::MulAdd(hn::Mul(p, f), square, hn::Mul(square, hn::Set(kF, -0.5f)));  // log m = f + tail
  // log10 2 = 0.30102539 (16 bits, so that e times it is exact) + 4.6050390e-6; log10 e likewise.
  V low = hn::Mul(e, hn::Set(kF, 4.605038981195214e-6f));
  low = hn::MulAdd(tail, hn::Set(kF, 0.4342944819032518f), low);
  low = hn::MulAdd(f, hn::Set(kF, 7.00731903251827651e-4f), low);
  return hn::MulAdd(e, hn::Set(kF, 0.301025390625f), hn::MulAdd(f, hn::Set(kF, 0.43359375f), low));
}

// x / (1 + e^-z).
HWY_INLINE V times_sigmoid(V x, V z) { return hn::Div(x, hn::Add(hn::Set(kF, 1.0f), exp_of(hn::Neg(z)))); }

HWY_INLINE V activated(Activation activation, V x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu_erf: {
      const V half = hn::Mul(x, hn::Set(kF, 0.5f));
      return hn::MulAdd(half, erf_of(hn::Mul(x, hn::Set(kF, 0.707106781186547524f))), half);
    }
    case Activation::gelu_tanh: {
      // 0.5 x (1 + tanh u) = x / (1 + e^-2u).
      const V inner = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), hn::Set(kF, 0.044715f), x);
      return times_sigmoid(x, hn::Mul(inner, hn::Set(kF, 1.5957691216057308f)));
    }
    case Activation::silu:
      return times_sigmoid(x, x);
  }
  return x;
}

// Sixteen partial sums to one, halves first.
HWY_INLINE float sum_of_sixteen(const float* parts) {
  float eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = parts[i] + parts[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Sum over i of term(i) for i in [0, count), where term(i, lanes) gives the next `lanes` <= kLanes terms, zeros after.
template <class Term>
HWY_INLINE float row_sum(std::int64_t count, Term term) {
  V parts[kSixteen];
  for (int j = 0; j < kSixteen; ++j) parts[j] = hn::Zero(kF);
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int j = 0; j < kSixteen; ++j) parts[j] = hn::Add(parts[j], term(i + j * kLanes, kLanes));
  for (int j = 0; j < kSixteen && i < count; ++j, i += kLanes)
    parts[j] = hn::Add(parts[j], term(i, static_cast<int>(HWY_MIN(count - i, kLanes))));
  HWY_ALIGN float lanes[16];
  for (int j = 0; j < kSixteen; ++j) hn::Store(parts[j], kF, lanes + j * kLanes);
  return sum_of_sixteen(lanes);
}

HWY_INLINE V load_up_to(const float* from, int lanes) {
  return lanes == kLanes ? hn::LoadU(kF, from) : load_first(from, static_cast<std::size_t>(lanes));
}
HWY_INLINE void store_up_to(V value, float* to, int lanes) {
  if (lanes == kLanes) {
    hn::StoreU(value, kF, to);
  } else {
    store_first(value, to, static_cast<std::size_t>(lanes));
  }
}

// body(i, lanes) over [0, count) in register steps.
template <class Body>
HWY_INLINE void for_lanes(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#endif  // MSTAR_OPS_SIMD_INL_H_
