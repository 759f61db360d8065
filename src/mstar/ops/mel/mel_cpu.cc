#include <algorithm>
#include <array>
#include <cmath>

#include "mstar/ops/mel/mel_kernels.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif

namespace mstar {
namespace {

void one_frame(const MelPlan& plan, const float* pcm, float* out, std::int64_t out_stride) {
  std::array<double, kMelWindowSamples> windowed;
  for (std::size_t i = 0; i < windowed.size(); ++i) windowed[i] = pcm[i] * plan.window()[i];
  std::array<float, kMelBins> power;
  for (std::size_t bin = 0; bin < power.size(); ++bin) {
    double real = 0, imaginary = 0;
    for (std::size_t i = 0; i < windowed.size(); ++i) {
      const std::size_t turn = bin * i % kMelWindowSamples;
      real += windowed[i] * plan.cosines()[turn];
      imaginary += windowed[i] * plan.sines()[turn];
    }
    power[bin] = static_cast<float>(real * real + imaginary * imaginary);
  }
  for (int m = 0; m < plan.num_mels(); ++m) {
    const float* filter = plan.filters().data() + static_cast<std::size_t>(m) * kMelBins;
    float sum = 0;
    for (int bin = plan.first_bin(m); bin < plan.last_bin(m); ++bin)
      sum += filter[bin] * power[static_cast<std::size_t>(bin)];
    out[m * out_stride] = std::log10(std::max(sum, 1e-10f));
  }
}

}  // namespace

Status log_mel_cpu(OpContext& context, const LogMelArgs& args) {
  context.parallel_for(args.out.dim(1), [&](std::int64_t frame, int) {
    one_frame(*args.plan, args.pcm.data<float>() + frame * kMelHopSamples, args.out.data<float>() + frame,
              args.out.stride(0));
  });
  return {};
}

Status mel_normalise_cpu(OpContext& context, const MelNormaliseArgs& args) {
  context.parallel_for(args.x.dim(0), [&](std::int64_t row, int) {
    const float* x = args.x.data<float>() + row * args.x.stride(0);
    float* out = args.out.data<float>() + row * args.out.stride(0);
    for (std::int64_t i = 0; i < args.x.dim(1); ++i) out[i] = (std::max(x[i], args.maximum - 8.0f) + 4.0f) / 4.0f;
  });
  return {};
}

}  // namespace mstar
