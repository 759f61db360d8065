// The kernels of score_tokens, for its table.
#pragma once

#include "mstar/ops/score_tokens/score_tokens.h"

namespace mstar {

Status score_tokens_cpu(OpContext& context, const ScoreTokensArgs& args);
#ifdef MSTAR_CUDA
Status score_tokens_cuda(OpContext& context, const ScoreTokensArgs& args);
#endif

}  // namespace mstar
