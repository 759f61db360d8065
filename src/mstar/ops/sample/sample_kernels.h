// The kernels of sample, for its tables.
#pragma once

#include "mstar/ops/sample/sample.h"

namespace mstar {
Status sample_cpu(OpContext& context, const SampleArgs& args);
// Defined where the build has CUDA. The largest logit of rows without masks or penalties.
bool sample_cuda_fits(const OpContext& context, const SampleArgs& args);
Status sample_cuda(OpContext& context, const SampleArgs& args);
Status log_probabilities_cpu(OpContext& context, const LogProbArgs& args);
Status token_probabilities_cpu(OpContext& context, const TokenProbabilityArgs& args);
}  // namespace mstar
