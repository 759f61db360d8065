// The kernels of rms_norm, for its table.
#pragma once

#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar {
Status rms_norm_cpu(OpContext& context, const RmsNormArgs& args);
}
