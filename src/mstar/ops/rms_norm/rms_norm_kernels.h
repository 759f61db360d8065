// The kernels of rms_norm, for its table.
#pragma once

#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar {
Status rms_norm_cpu(OpContext& context, const RmsNormArgs& args);
// Defined where the build has CUDA.
Status rms_norm_cuda(OpContext& context, const RmsNormArgs& args);
}  // namespace mstar
