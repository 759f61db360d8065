#include <cmath>

#include "mstar/ops/rms_norm/rms_norm_kernels.h"

namespace mstar {

Status rms_norm_cpu(OpContext& context, const RmsNormArgs& args) {
  const std::int64_t d = args.x.dim(1);
  context.parallel_for(args.x.dim(0), [&](std::int64_t row, int) {
    const float* x = args.x.data<float>() + row * args.x.stride(0);
    float* out = args.out.data<float>() + row * args.out.stride(0);
    double squares = 0;
    for (std::int64_t i = 0; i < d; ++i) squares += static_cast<double>(x[i]) * x[i];
    const auto inverse = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d) + args.epsilon));
    for (std::int64_t i = 0; i < d; ++i) out[i] = x[i] * inverse * (args.weight.data<float>()[i] + args.weight_offset);
  });
  return {};
}

}  // namespace mstar
