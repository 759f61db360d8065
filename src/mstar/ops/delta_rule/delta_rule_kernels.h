// The kernels of the delta rule, for its tables.
#pragma once

#include "mstar/ops/delta_rule/delta_rule.h"

namespace mstar {
Status delta_gates_cpu(OpContext& context, const DeltaGatesArgs& args);
Status delta_rule_cpu(OpContext& context, const DeltaRuleArgs& args);
std::size_t delta_rule_cpu_workspace_bytes(std::int64_t key_dim, int num_threads);
// What goes 64 tokens at a time takes of the arena, a token and head: two matrices' lower halves, each as two of bf16,
// and five factors, with room for short chunks.
inline constexpr std::int64_t kDeltaChunkBytes = 512 + 512 * 12 / 32;
// Defined where the build has CUDA.
Status delta_gates_cuda(OpContext& context, const DeltaGatesArgs& args);
bool delta_rule_cuda_fits(const OpContext& context, const DeltaRuleArgs& args);
Status delta_rule_cuda(OpContext& context, const DeltaRuleArgs& args);
}  // namespace mstar
