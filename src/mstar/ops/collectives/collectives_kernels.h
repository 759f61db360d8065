// The kernels of gather_columns, for its table: what is left once every rank has all parts.
#pragma once

#include "mstar/ops/collectives/collectives.h"

namespace mstar {

Status join_columns_cpu(OpContext& context, const GatherColumnsArgs& args);
#ifdef MSTAR_CUDA
Status join_columns_cuda(OpContext& context, const GatherColumnsArgs& args);
#endif

}  // namespace mstar
