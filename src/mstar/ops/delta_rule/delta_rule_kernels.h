// The kernels of the delta rule, for its tables.
#pragma once

#include "mstar/ops/delta_rule/delta_rule.h"

namespace mstar {
Status delta_gates_cpu(OpContext& context, const DeltaGatesArgs& args);
Status delta_rule_cpu(OpContext& context, const DeltaRuleArgs& args);
}  // namespace mstar
