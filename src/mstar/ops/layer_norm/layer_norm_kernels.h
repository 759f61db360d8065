// The kernels of layer_norm, for its table.
#pragma once

#include "mstar/ops/layer_norm/layer_norm.h"

namespace mstar {
Status layer_norm_cpu(OpContext& context, const LayerNormArgs& args);
// Defined where the build has CUDA.
Status layer_norm_cuda(OpContext& context, const LayerNormArgs& args);
}  // namespace mstar
