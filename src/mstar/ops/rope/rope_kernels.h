// The kernels of rope, for its table.
#pragma once

#include "mstar/ops/rope/rope.h"

namespace mstar {
Status rope_cpu(OpContext& context, const RopeArgs& args);
}
