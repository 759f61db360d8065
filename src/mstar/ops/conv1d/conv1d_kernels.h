// The kernels of conv1d, for its table.
#pragma once

#include "mstar/ops/conv1d/conv1d.h"

namespace mstar {
Status conv1d_cpu(OpContext& context, const Conv1dArgs& args);
// Defined where the build has CUDA.
Status conv1d_cuda(OpContext& context, const Conv1dArgs& args);
}  // namespace mstar
