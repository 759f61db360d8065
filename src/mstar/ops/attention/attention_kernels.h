// The kernels of attention, for its tables.
#pragma once

#include "mstar/ops/attention/attention.h"

namespace mstar {
Status attention_dense_cpu(OpContext& context, const DenseAttentionArgs& args);
Status attention_paged_cpu(OpContext& context, const PagedAttentionArgs& args);
Status attention_slots_cpu(OpContext& context, const SlotAttentionArgs& args);
// Defined where the build has CUDA. head_dim <= 256.
bool attention_paged_cuda_fits(const OpContext& context, const PagedAttentionArgs& args);
Status attention_paged_cuda(OpContext& context, const PagedAttentionArgs& args);
}  // namespace mstar
