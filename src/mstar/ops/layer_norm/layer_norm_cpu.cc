#include <cmath>

#include "mstar/ops/layer_norm/layer_norm_kernels.h"

namespace mstar {

Status layer_norm_cpu(OpContext& context, const LayerNormArgs& args) {
  const std::int64_t d = args.x.dim(1);
  context.parallel_for(args.x.dim(0), [&](std::int64_t row, int) {
    const float* x = args.x.data<float>() + row * args.x.stride(0);
    float* out = args.out.data<float>() + row * args.out.stride(0);
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(d);
    for (std::int64_t i = 0; i < d; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(d) + args.epsilon);
    for (std::int64_t i = 0; i < d; ++i) {
      const float scaled = static_cast<float>((x[i] - mean) * inverse) * args.weight.data<float>()[i];
      out[i] = args.bias.pointer ? scaled + args.bias.data<float>()[i] : scaled;
    }
  });
  return {};
}

}  // namespace mstar
