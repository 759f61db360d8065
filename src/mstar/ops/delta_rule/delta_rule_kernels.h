// The kernels of the delta rule, for its tables.
#pragma once

#include "mstar/ops/delta_rule/delta_rule.h"

namespace mstar {
Status delta_gates_cpu(OpContext& context, const DeltaGatesArgs& args);
Status delta_rule_cpu(OpContext& context, const DeltaRuleArgs& args);
// Defined where the build has CUDA.
Status delta_gates_cuda(OpContext& context, const DeltaGatesArgs& args);
bool delta_rule_cuda_fits(const OpContext& context, const DeltaRuleArgs& args);
Status delta_rule_cuda(OpContext& context, const DeltaRuleArgs& args);
}  // namespace mstar
