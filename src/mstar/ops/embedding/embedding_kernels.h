// The kernels of embedding, for its table.
#pragma once

#include "mstar/ops/embedding/embedding.h"

namespace mstar {
Status embedding_cpu(OpContext& context, const EmbeddingArgs& args);
// Defined where the build has CUDA.
Status embedding_cuda(OpContext& context, const EmbeddingArgs& args);
}  // namespace mstar
