// The kernels of timestamp_rules, for its table.
#pragma once

#include "mstar/ops/timestamp_rules/timestamp_rules.h"

namespace mstar {
Status timestamp_rules_cpu(OpContext& context, const TimestampRulesArgs& args);
// Defined where the build has CUDA.
Status timestamp_rules_cuda(OpContext& context, const TimestampRulesArgs& args);
}  // namespace mstar
