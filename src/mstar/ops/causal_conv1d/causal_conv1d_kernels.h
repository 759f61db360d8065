// The kernels of causal_conv1d, for its table.
#pragma once

#include "mstar/ops/causal_conv1d/causal_conv1d.h"

namespace mstar {
Status causal_conv1d_cpu(OpContext& context, const CausalConv1dArgs& args);
// Defined where the build has CUDA.
bool causal_conv1d_cuda_fits(const OpContext& context, const CausalConv1dArgs& args);
Status causal_conv1d_cuda(OpContext& context, const CausalConv1dArgs& args);
}  // namespace mstar
