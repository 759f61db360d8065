// The kernels of mel, for its tables.
#pragma once

#include "mstar/ops/mel/mel.h"

namespace mstar {
Status log_mel_cpu(OpContext& context, const LogMelArgs& args);
Status mel_normalise_cpu(OpContext& context, const MelNormaliseArgs& args);
}  // namespace mstar
