#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/mel/mel_cpu.cc"
#include <limits>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/mel/mel_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

// The transform runs in f64: in f32 the rounding of a loud bin reaches quiet ones 8 decades below, which the logarithm
// shows. Four frames at a time: of eight, what lies between two passes is larger than a core's first cache.
constexpr int kFrames = 4;
constexpr int kDoubles = HWY_MIN(kFrames, HWY_LANES(double));
using D = hn::CappedTag<double, kFrames>;
using VD = hn::Vec<D>;
constexpr D kD;

constexpr int kHalf = kMelWindowSamples / 2;  // a real transform of 400 is a complex one of 200 = 4 * 2 * 5 * 5

// Every vector holds the same element of kDoubles frames, so a frame's arithmetic does not depend on its neighbours.
struct Complex {
  VD real, imaginary;
};
HWY_INLINE Complex add(Complex a, Complex b) { return {hn::Add(a.real, b.real), hn::Add(a.imaginary, b.imaginary)}; }
HWY_INLINE Complex subtract(Complex a, Complex b) {
  return {hn::Sub(a.real, b.real), hn::Sub(a.imaginary, b.imaginary)};
}
HWY_INLINE Complex times_minus_i(Complex a) { return {a.imaginary, hn::Neg(a.real)}; }
HWY_INLINE Complex multiply(Complex a, double real, double imaginary) {
  const VD r = hn::Set(kD, real), i = hn::Set(kD, imaginary);
  return {hn::NegMulAdd(a.imaginary, i, hn::Mul(a.real, r)), hn::MulAdd(a.imaginary, r, hn::Mul(a.real, i))};
}

struct Buffer {
  double values[kHalf][2][kDoubles];
  HWY_INLINE Complex at(int i) const { return {hn::Load(kD, values[i][0]), hn::Load(kD, values[i][1])}; }
  HWY_INLINE void set(int i, Complex c) {
    hn::Store(c.real, kD, values[i][0]);
    hn::Store(c.imaginary, kD, values[i][1]);
  }
};

template <int kRadix>
HWY_INLINE void butterfly(Complex* x);

template <>
HWY_INLINE void butterfly<2>(Complex* x) {
  const Complex a = x[0];
  x[0] = add(a, x[1]);
  x[1] = subtract(a, x[1]);
}
template <>
HWY_INLINE void butterfly<4>(Complex* x) {
  const Complex a = add(x[0], x[2]), b = subtract(x[0], x[2]), c = add(x[1], x[3]),
                d = times_minus_i(subtract(x[1], x[3]));
  x[0] = add(a, c);
  x[1] = add(b, d);
  x[2] = subtract(a, c);
  x[3] = subtract(b, d);
}
template <>
HWY_INLINE void butterfly<5>(Complex* x) {
  // Cosines and sines of 2 pi / 5 and 4 pi / 5.
  const VD c1 = hn::Set(kD, 0.30901699437494742), c2 = hn::Set(kD, -0.80901699437494742);
  const VD s1 = hn::Set(kD, 0.95105651629515357), s2 = hn::Set(kD, 0.58778525229247313);
  const Complex a = add(x[1], x[4]), b = add(x[2], x[3]), c = subtract(x[1], x[4]), d = subtract(x[2], x[3]);
  const Complex even1 = {hn::MulAdd(c2, b.real, hn::MulAdd(c1, a.real, x[0].real)),
                         hn::MulAdd(c2, b.imaginary, hn::MulAdd(c1, a.imaginary, x[0].imaginary))};
  const Complex even2 = {hn::MulAdd(c1, b.real, hn::MulAdd(c2, a.real, x[0].real)),
                         hn::MulAdd(c1, b.imaginary, hn::MulAdd(c2, a.imaginary, x[0].imaginary))};
  const Complex odd1 = times_minus_i(
      {hn::MulAdd(s2, d.real, hn::Mul(s1, c.real)), hn::MulAdd(s2, d.imaginary, hn::Mul(s1, c.imaginary))});
  const Complex odd2 = times_minus_i(
      {hn::NegMulAdd(s1, d.real, hn::Mul(s2, c.real)), hn::NegMulAdd(s1, d.imaginary, hn::Mul(s2, c.imaginary))});
  x[0] = add(x[0], add(a, b));
  x[1] = add(even1, odd1);
  x[4] = subtract(even1, odd1);
  x[2] = add(even2, odd2);
  x[3] = subtract(even2, odd2);
}

using Samples = float[kMelWindowSamples][kFrames];

// The frames' samples, windowed, side by side.
HWY_INLINE void window_frames(const float* const* frames, const float* window, Samples& out) {
  const hn::FixedTag<float, 4> d;
  for (int i = 0; i < kMelWindowSamples; i += 4) {
    const auto weights = hn::LoadU(d, window + i);
    hn::StoreInterleaved4(hn::Mul(hn::LoadU(d, frames[0] + i), weights), hn::Mul(hn::LoadU(d, frames[1] + i), weights),
                          hn::Mul(hn::LoadU(d, frames[2] + i), weights), hn::Mul(hn::LoadU(d, frames[3] + i), weights),
                          d, out[i]);
  }
}

// The Stockham passes of 4 and 2 in one; element n of what is transformed is samples 2 n and 2 n + 1.
HWY_INLINE void passes_of_8(const MelPlan& plan, const Samples& samples, int first_frame, Buffer& to) {
  const double* const cosines = plan.cosines().data();
  const double* const sines = plan.sines().data();
  const hn::Rebind<float, D> narrow;
  for (int i = 0; i < kHalf / 8; ++i) {
    Complex y[2][4];
    for (int half = 0; half < 2; ++half) {
      const int at = i + half * (kHalf / 8);
      Complex* const x = y[half];
      for (int j = 0; j < 4; ++j) {
        const float* const pair = samples[2 * (at + j * (kHalf / 4))] + first_frame;
        x[j] = {hn::PromoteTo(kD, hn::Load(narrow, pair)), hn::PromoteTo(kD, hn::Load(narrow, pair + kFrames))};
      }
      butterfly<4>(x);
      for (int j = 1; j < 4; ++j) x[j] = multiply(x[j], cosines[2 * j * at], sines[2 * j * at]);
    }
    for (int k = 0; k < 4; ++k) {
      Complex x[2] = {y[0][k], y[1][k]};
      butterfly<2>(x);
      to.set(i + (kHalf / 8) * k, x[0]);
      to.set(i + (kHalf / 8) * (k + 4), multiply(x[1], cosines[8 * i], sines[8 * i]));
    }
  }
}

// Where the last passes leave each bin.
struct Places {
  constexpr Places() {
    for (int bin = 0; bin < kHalf; ++bin)
      of[bin] = static_cast<std::uint8_t>(25 * (bin % 8) + 5 * (bin / 8 % 5) + bin / 40);
  }
  std::uint8_t of[kHalf] = {};
};
constexpr Places kPlaces;

// The two passes of 5 in one, in place.
HWY_INLINE void passes_of_25(const MelPlan& plan, Buffer& z) {
  const double* const cosines = plan.cosines().data();
  const double* const sines = plan.sines().data();
  for (int k = 0; k < 8; ++k) {
    Complex x[5][5];
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < 5; ++j) x[i][j] = z.at(25 * k + i + 5 * j);
      butterfly<5>(x[i]);
      for (int j = 1; j < 5 && i > 0; ++j) x[i][j] = multiply(x[i][j], cosines[16 * i * j], sines[16 * i * j]);
    }
    for (int j = 0; j < 5; ++j) {
      Complex last[5] = {x[0][j], x[1][j], x[2][j], x[3][j], x[4][j]};
      butterfly<5>(last);
      for (int i = 0; i < 5; ++i) z.set(25 * k + 5 * j + i, last[i]);
    }
  }
}

// |even + odd turned by the bin's twiddle|^2, of what is four times that.
HWY_INLINE void store_power(const MelPlan& plan, Complex even, Complex odd, int bin, float* out) {
  const hn::Rebind<float, D> narrow;
  const auto turn = static_cast<std::size_t>(bin);
  const Complex x = add(even, multiply(odd, plan.cosines()[turn], plan.sines()[turn]));
  const VD sum = hn::MulAdd(x.real, x.real, hn::Mul(x.imaginary, x.imaginary));
  hn::StoreU(hn::DemoteTo(narrow, hn::Mul(sum, hn::Set(kD, 0.25))), narrow, out);
}

// |transform|^2 of the packed real frames in z, for bins 0..200, by twos that take the same elements.
HWY_INLINE void power_of(const MelPlan& plan, const Buffer& z, float (*power)[kLanes], int first_lane) {
  for (int bin = 0; bin <= kHalf / 2; ++bin) {
    const Complex a = z.at(kPlaces.of[bin]), b = z.at(kPlaces.of[bin == 0 ? 0 : kHalf - bin]);
    // Even samples: (a + conj b) / 2; odd ones: (a - conj b) / 2i.
    const VD even = hn::Add(a.real, b.real), odd = hn::Add(a.imaginary, b.imaginary);
    store_power(plan, {even, hn::Sub(a.imaginary, b.imaginary)}, {odd, hn::Sub(b.real, a.real)}, bin,
                power[bin] + first_lane);
    if (bin < kHalf / 2)
      store_power(plan, {even, hn::Sub(b.imaginary, a.imaginary)}, {odd, hn::Sub(a.real, b.real)}, kHalf - bin,
                  power[kHalf - bin] + first_lane);
  }
}

// Frames [first, first + count), count <= kLanes.
void mel_of_frames(const LogMelArgs& args, std::int64_t first, int count) {
  const MelPlan& plan = *args.plan;
  HWY_ALIGN Samples samples;
  HWY_ALIGN Buffer z;
  HWY_ALIGN float power[kMelBins][kLanes];
  const float* const pcm = args.pcm.data<float>() + first * kMelHopSamples;
  for (int group = 0; group < count; group += kFrames) {
    // Lanes without a frame repeat the last one.
    const float* frames[kFrames];
    for (int i = 0; i < kFrames; ++i) frames[i] = pcm + HWY_MIN(group + i, count - 1) * kMelHopSamples;
    window_frames(frames, plan.window().data(), samples);
    for (int part = 0; part < kFrames; part += kDoubles) {
      passes_of_8(plan, samples, part, z);
      passes_of_25(plan, z);
      power_of(plan, z, power, group + part);
    }
  }
  for (int m = 0; m < plan.num_mels(); ++m) {
    const float* filter = plan.filters().data() + static_cast<std::size_t>(m) * kMelBins;
    V sum = hn::Zero(kF);
    for (int bin = plan.first_bin(m); bin < plan.last_bin(m); ++bin)
      sum = hn::MulAdd(hn::Set(kF, filter[bin]), hn::Load(kF, power[bin]), sum);
    store_up_to(log10_of(hn::Max(sum, hn::Set(kF, 1e-10f))), args.out.data<float>() + m * args.out.stride(0) + first,
                count);
  }
}

void log_mel_frames(OpContext& context, const LogMelArgs& args) {
  const std::int64_t frames = args.out.dim(1);
  context.parallel_for((frames + kLanes - 1) / kLanes, [&](std::int64_t tile, int) HWY_ATTR {
    mel_of_frames(args, tile * kLanes, static_cast<int>(HWY_MIN(frames - tile * kLanes, std::int64_t{kLanes})));
  });
}

HWY_INLINE void store_some(V value, float* to, int lanes) { store_up_to(value, to, lanes); }
HWY_INLINE void store_some(V value, BFloat16* to, int lanes) {
  if (lanes == kLanes) return store_narrow(value, to);
  BFloat16 all[kLanes];
  store_narrow(value, all);
  for (int i = 0; i < lanes; ++i) to[i] = all[i];
}

template <class T>
HWY_INLINE void normalise(const float* x, std::int64_t count, float maximum, T* out) {
  const V floor = hn::Set(kF, maximum - 8.0f), four = hn::Set(kF, 4.0f), quarter = hn::Set(kF, 0.25f);
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    store_some(hn::Mul(hn::Add(hn::Max(load_up_to(x + i, lanes), floor), four), quarter), out + i, lanes);
  });
}
void normalise_row(const float* x, std::int64_t count, float maximum, float* out) { normalise(x, count, maximum, out); }
void normalise_row_to_bf16(const float* x, std::int64_t count, float maximum, BFloat16* out) {
  normalise(x, count, maximum, out);
}

float largest_of_row(const float* x, std::int64_t count) {
  V largest = hn::Set(kF, -std::numeric_limits<float>::infinity());
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    const V value = load_up_to(x + i, lanes);
    largest = hn::Max(largest, lanes == kLanes
                                   ? value
                                   : hn::IfThenElse(hn::FirstN(kF, static_cast<std::size_t>(lanes)), value, largest));
  });
  return hn::GetLane(hn::MaxOfLanes(kF, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace mstar {
HWY_EXPORT(log_mel_frames);
HWY_EXPORT(normalise_row);
HWY_EXPORT(normalise_row_to_bf16);
HWY_EXPORT(largest_of_row);

Status log_mel_cpu(OpContext& context, const LogMelArgs& args) {
  HWY_DYNAMIC_DISPATCH(log_mel_frames)(context, args);
  return {};
}

Status mel_normalise_cpu(OpContext& context, const MelNormaliseArgs& args) {
  const bool narrow = args.out.dtype == DType::bf16;
  context.parallel_for(args.x.dim(0), [&](std::int64_t row, int) {
    const float* const from = args.x.data<float>() + row * args.x.stride(0);
    const std::int64_t at = row * args.out.stride(0);
    if (narrow) {
      HWY_DYNAMIC_DISPATCH(normalise_row_to_bf16)
      (from, args.x.dim(1), args.maximum, args.out.data<BFloat16>() + at);
    } else {
      HWY_DYNAMIC_DISPATCH(normalise_row)(from, args.x.dim(1), args.maximum, args.out.data<float>() + at);
    }
  });
  return {};
}

float mel_maximum(const TensorView& x) {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t row = 0; row < x.dim(0); ++row)
    largest = std::max(largest, HWY_DYNAMIC_DISPATCH(largest_of_row)(x.data<float>() + row * x.stride(0), x.dim(1)));
  return largest;
}

}  // namespace mstar
#endif
