// The kernels of linear, for its table.
#pragma once

#include "mstar/ops/linear/linear.h"

namespace mstar {

Status linear_cpu_float(OpContext& context, const LinearArgs& args);
Status linear_cpu_i8(OpContext& context, const LinearArgs& args);
// Defined where the build has CUDA. Weights of f32, f16 and bf16.
Status linear_cuda(OpContext& context, const LinearArgs& args);
std::size_t linear_cpu_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads);

}  // namespace mstar
