// The kernels of pick_columns, for its table.
#pragma once

#include "mstar/ops/pick_columns/pick_columns.h"

namespace mstar {

Status pick_columns_cpu(OpContext& context, const PickColumnsArgs& args);
#ifdef MSTAR_CUDA
Status pick_columns_cuda(OpContext& context, const PickColumnsArgs& args);
#endif

}  // namespace mstar
