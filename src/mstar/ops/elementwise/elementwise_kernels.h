// The kernels of the elementwise ops, for their tables.
#pragma once

#include "mstar/ops/elementwise/elementwise.h"

namespace mstar {
Status add_cpu(OpContext& context, const AddArgs& args);
Status activate_cpu(OpContext& context, const ActivateArgs& args);
Status silu_mul_cpu(OpContext& context, const SiluMulArgs& args);
Status sigmoid_mul_cpu(OpContext& context, const SigmoidMulArgs& args);
Status softmax_cpu(OpContext& context, const SoftmaxArgs& args);
// Defined where the build has CUDA.
Status add_cuda(OpContext& context, const AddArgs& args);
Status activate_cuda(OpContext& context, const ActivateArgs& args);
Status silu_mul_cuda(OpContext& context, const SiluMulArgs& args);
Status sigmoid_mul_cuda(OpContext& context, const SigmoidMulArgs& args);
Status softmax_cuda(OpContext& context, const SoftmaxArgs& args);
}  // namespace mstar
