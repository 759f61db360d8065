// The kernels of kv_append, for its tables.
#pragma once

#include "mstar/ops/kv_append/kv_append.h"

namespace mstar {
Status kv_append_cpu(OpContext& context, const KvAppendArgs& args);
Status kv_store_cpu(OpContext& context, const KvStoreArgs& args);
// Defined where the build has CUDA.
Status kv_append_cuda(OpContext& context, const KvAppendArgs& args);
Status kv_store_cuda(OpContext& context, const KvStoreArgs& args);
}  // namespace mstar
