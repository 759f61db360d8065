#include "mstar/ops/mel/mel.h"

#include <algorithm>
#include <cmath>

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/mel/mel_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<LogMelArgs> kLogMel[] = {{"cpu", Backend::cpu, nullptr, log_mel_cpu}};
constexpr Kernel<MelNormaliseArgs> kNormalise[] = {{"cpu", Backend::cpu, nullptr, mel_normalise_cpu}};
constexpr double kPi = 3.14159265358979323846;

// Slaney's scale: linear to 1 kHz (15 mel), logarithmic above.
double mel_to_hz(double mel) {
  return mel < 15.0 ? mel * 200.0 / 3.0 : 1000.0 * std::exp(std::log(6.4) / 27.0 * (mel - 15.0));
}
double hz_to_mel(double hz) {
  return hz < 1000.0 ? hz * 3.0 / 200.0 : 15.0 + std::log(hz / 1000.0) * 27.0 / std::log(6.4);
}

}  // namespace

Result<MelPlan> MelPlan::make(int num_mels) {
  if (num_mels != 80 && num_mels != 128)
    return bad_model("a mel front end has 80 or 128 bands, not " + std::to_string(num_mels));
  MelPlan plan;
  plan.num_mels_ = num_mels;
  for (int i = 0; i < kMelWindowSamples; ++i) {
    const double angle = 2.0 * kPi * i / kMelWindowSamples;
    plan.window_.push_back(static_cast<float>(0.5 - 0.5 * std::cos(angle)));
    plan.cosines_.push_back(std::cos(angle));
    plan.sines_.push_back(-std::sin(angle));
  }
  std::vector<double> edges;
  const double top = hz_to_mel(kMelSampleRate / 2.0);
  for (int m = 0; m < num_mels + 2; ++m) edges.push_back(mel_to_hz(top * m / (num_mels + 1)));
  for (int m = 0; m < num_mels; ++m) {
    const double left = edges[static_cast<std::size_t>(m)], centre = edges[static_cast<std::size_t>(m) + 1],
                 right = edges[static_cast<std::size_t>(m) + 2];
    int first = kMelBins, last = 0;
    for (int bin = 0; bin < kMelBins; ++bin) {
      const double hz = static_cast<double>(bin) * kMelSampleRate / kMelWindowSamples;
      const double triangle = std::max(0.0, std::min((hz - left) / (centre - left), (right - hz) / (right - centre)));
      plan.filters_.push_back(static_cast<float>(triangle * 2.0 / (right - left)));
      if (triangle > 0) {
        first = std::min(first, bin);
        last = bin + 1;
      }
    }
    plan.first_bins_.push_back(std::min(first, last));
    plan.last_bins_.push_back(last);
  }
  return plan;
}

Status log_mel(OpContext& context, const LogMelArgs& args) {
  MSTAR_OP_EXPECT("log_mel", args.plan && args.out.shape.rank() == 2);
  const std::int64_t frames = args.out.dim(1);
  MSTAR_OP_EXPECT("log_mel", is_rows_of(args.out, DType::f32, args.plan->num_mels(), frames));
  MSTAR_OP_EXPECT("log_mel", args.pcm.shape.rank() == 1 && is_vector_of(args.pcm, DType::f32, args.pcm.dim(0)));
  MSTAR_OP_EXPECT("log_mel", args.pcm.dim(0) >= mel_samples(frames));
  return run_first_fit(context, args, kLogMel, "log_mel");
}

Status mel_normalise(OpContext& context, const MelNormaliseArgs& args) {
  MSTAR_OP_EXPECT("mel_normalise", args.x.shape.rank() == 2);
  MSTAR_OP_EXPECT("mel_normalise", is_rows_of(args.x, DType::f32, args.x.dim(0), args.x.dim(1)));
  const DType out = args.out.dtype == DType::bf16 ? DType::bf16 : DType::f32;
  MSTAR_OP_EXPECT("mel_normalise", is_rows_of(args.out, out, args.x.dim(0), args.x.dim(1)));
  return run_first_fit(context, args, kNormalise, "mel_normalise");
}

}  // namespace mstar
