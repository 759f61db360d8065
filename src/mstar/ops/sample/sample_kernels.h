// The kernels of sample, for its tables.
#pragma once

#include "mstar/ops/sample/sample.h"

namespace mstar {
Status sample_cpu(OpContext& context, const SampleArgs& args);
Status log_probabilities_cpu(OpContext& context, const LogProbArgs& args);
Status token_probabilities_cpu(OpContext& context, const TokenProbabilityArgs& args);

// ---- defined where the build has CUDA
// An eighth of a row lies in the shared memory of one multiprocessor.
inline constexpr std::int64_t kMaxDrawVocabularyCuda = 290000;
bool sample_cuda_fits(const OpContext& context, const SampleArgs& args);
Status sample_cuda(OpContext& context, const SampleArgs& args);
inline constexpr std::size_t kMaxTokenProbabilitiesCuda = 128;  // ids of one call
bool token_probabilities_cuda_fits(const OpContext& context, const TokenProbabilityArgs& args);
Status token_probabilities_cuda(OpContext& context, const TokenProbabilityArgs& args);
bool log_probabilities_cuda_fits(const OpContext& context, const LogProbArgs& args);
Status log_probabilities_cuda(OpContext& context, const LogProbArgs& args);
}  // namespace mstar
