// The kernels of qkv_prepare, for its table.
#pragma once

#include "mstar/ops/qkv_prepare/qkv_prepare.h"

namespace mstar {
// The ops that it is made of, one after another: any backend.
Status qkv_prepare_in_parts(OpContext& context, const QkvPrepareArgs& args);
// Defined where the build has CUDA.
bool qkv_prepare_cuda_fits(const OpContext& context, const QkvPrepareArgs& args);
Status qkv_prepare_cuda(OpContext& context, const QkvPrepareArgs& args);
}  // namespace mstar
