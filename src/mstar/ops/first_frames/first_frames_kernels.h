// The kernels of first_frames, for its table.
#pragma once

#include "mstar/ops/first_frames/first_frames.h"

namespace mstar {

Status first_frames_cpu(OpContext& context, const FirstFramesArgs& args);
#ifdef MSTAR_CUDA
bool first_frames_cuda_fits(const OpContext& context, const FirstFramesArgs& args);
Status first_frames_cuda(OpContext& context, const FirstFramesArgs& args);
#endif

}  // namespace mstar
