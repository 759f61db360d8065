// The kernels of rope, for its table.
#pragma once

#include "mstar/ops/rope/rope.h"

namespace mstar {
Status rope_cpu(OpContext& context, const RopeArgs& args);
// Defined where the build has CUDA.
Status rope_cuda(OpContext& context, const RopeArgs& args);
}  // namespace mstar
