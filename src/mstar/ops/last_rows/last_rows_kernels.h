#pragma once

#include "mstar/ops/last_rows/last_rows.h"

namespace mstar {

Status last_rows_cpu(OpContext& context, const LastRowsArgs& args);
#ifdef MSTAR_CUDA
Status last_rows_cuda(OpContext& context, const LastRowsArgs& args);
#endif

}  // namespace mstar
