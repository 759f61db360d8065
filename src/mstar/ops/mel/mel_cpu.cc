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
// shows.
using D = hn::CappedTag<double, 8>;
using VD = hn::Vec<D>;
constexpr D kD;
constexpr int kDoubles = kLanes / 2;

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

// One Stockham pass after `done` = the product of the earlier radices.
template <int kRadix>
HWY_INLINE void pass(const MelPlan& plan, int done, const Buffer& from, Buffer& to) {
  const int inner = kHalf / (done * kRadix);
  for (int k = 0; k < done; ++k) {
    for (int i = 0; i < inner; ++i) {
      Complex x[kRadix];
      for (int j = 0; j < kRadix; ++j) x[j] = from.at(i + inner * (j + kRadix * k));
      butterfly<kRadix>(x);
      to.set(i + inner * k, x[0]);
      for (int j = 1; j < kRadix; ++j) {
        const auto turn = static_cast<std::size_t>(2 * j * done * i);  // of 400
        to.set(i + inner * (k + done * j), multiply(x[j], plan.cosines()[turn], plan.sines()[turn]));
      }
    }
  }
}

// |transform|^2 of the packed real frames in z, for bins 0..200.
HWY_INLINE void power_of(const MelPlan& plan, const Buffer& z, float (*power)[kLanes], int first_lane) {
  const hn::Rebind<float, D> narrow;
  const VD half = hn::Set(kD, 0.5f);
  for (int bin = 0; bin <= kHalf; ++bin) {
    const Complex a = z.at(bin % kHalf), b = z.at((kHalf - bin) % kHalf);
    // Even samples: (a + conj b) / 2; odd ones: (a - conj b) / 2i, turned by the bin's twiddle.
    const Complex even = {hn::Mul(half, hn::Add(a.real, b.real)), hn::Mul(half, hn::Sub(a.imaginary, b.imaginary))};
    const Complex odd = {hn::Mul(half, hn::Add(a.imaginary, b.imaginary)), hn::Mul(half, hn::Sub(b.real, a.real))};
    const auto turn = static_cast<std::size_t>(bin);
    const Complex x = add(even, multiply(odd, plan.cosines()[turn], plan.sines()[turn]));
    hn::StoreU(hn::DemoteTo(narrow, hn::MulAdd(x.real, x.real, hn::Mul(x.imaginary, x.imaginary))), narrow,
               power[bin] + first_lane);
  }
}

// Frames [first, first + count), count <= kLanes.
void mel_of_frames(const LogMelArgs& args, std::int64_t first, int count) {
  const MelPlan& plan = *args.plan;
  HWY_ALIGN Buffer a, b;
  HWY_ALIGN float power[kMelBins][kLanes];
  const hn::Rebind<float, D> narrow;
  const float* const window = plan.window().data();
  const float* const pcm = args.pcm.data<float>() + first * kMelHopSamples;
  for (int part = 0; part < kLanes; part += kDoubles) {
    // Lanes without a frame repeat the last one.
    const float* frames[kDoubles];
    for (int lane = 0; lane < kDoubles; ++lane) frames[lane] = pcm + HWY_MIN(part + lane, count - 1) * kMelHopSamples;
    for (int i = 0; i < kMelWindowSamples; ++i) {
      HWY_ALIGN float samples[kDoubles];
      for (int lane = 0; lane < kDoubles; ++lane) samples[lane] = frames[lane][i];
      const auto weighted = hn::Mul(hn::Load(narrow, samples), hn::Set(narrow, window[i]));
      hn::Store(hn::PromoteTo(kD, weighted), kD, a.values[i / 2][i % 2]);
    }
    pass<4>(plan, 1, a, b);
    pass<2>(plan, 4, b, a);
    pass<5>(plan, 8, a, b);
    pass<5>(plan, 40, b, a);
    power_of(plan, a, power, part);
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

void normalise_row(const float* x, std::int64_t count, float maximum, float* out) {
  const V floor = hn::Set(kF, maximum - 8.0f), four = hn::Set(kF, 4.0f), quarter = hn::Set(kF, 0.25f);
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    store_up_to(hn::Mul(hn::Add(hn::Max(load_up_to(x + i, lanes), floor), four), quarter), out + i, lanes);
  });
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
HWY_EXPORT(largest_of_row);

Status log_mel_cpu(OpContext& context, const LogMelArgs& args) {
  HWY_DYNAMIC_DISPATCH(log_mel_frames)(context, args);
  return {};
}

Status mel_normalise_cpu(OpContext& context, const MelNormaliseArgs& args) {
  context.parallel_for(args.x.dim(0), [&](std::int64_t row, int) {
    HWY_DYNAMIC_DISPATCH(normalise_row)
    (args.x.data<float>() + row * args.x.stride(0), args.x.dim(1), args.maximum,
     args.out.data<float>() + row * args.out.stride(0));
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
