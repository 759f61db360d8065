// The kernels of attention, for its tables.
#pragma once

#include "mstar/ops/attention/attention.h"

namespace mstar {
Status attention_dense_cpu(OpContext& context, const DenseAttentionArgs& args);
Status attention_paged_cpu(OpContext& context, const PagedAttentionArgs& args);
Status attention_slots_cpu(OpContext& context, const SlotAttentionArgs& args);
}  // namespace mstar
