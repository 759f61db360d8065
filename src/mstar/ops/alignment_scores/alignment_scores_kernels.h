// The kernels of alignment_scores, for its table.
#pragma once

#include "mstar/ops/alignment_scores/alignment_scores.h"

namespace mstar {

Status alignment_scores_cpu(OpContext& context, const AlignmentScoresArgs& args);
#ifdef MSTAR_CUDA
bool alignment_scores_cuda_fits(const OpContext& context, const AlignmentScoresArgs& args);
Status alignment_scores_cuda(OpContext& context, const AlignmentScoresArgs& args);
#endif

}  // namespace mstar
