// The kernels of delta_mix, for its table.
#pragma once

#include "mstar/ops/delta_mix/delta_mix.h"

namespace mstar {

// Where the columns of `in` begin.
struct DeltaMixColumns {
  std::int64_t k = 0, v = 0, z = 0, b = 0, a = 0, end = 0;
};
inline DeltaMixColumns delta_mix_columns(const DeltaMixArgs& args) {
  const std::int64_t heads = args.rule_state.dim(1), keys = args.key_heads * args.rule_state.dim(2);
  const std::int64_t values = heads * args.rule_state.dim(3);
  DeltaMixColumns at;
  at.k = keys;
  at.v = 2 * keys;
  at.z = at.v + values;
  at.b = at.z + values;
  at.a = at.b + heads;
  at.end = at.a + heads;
  return at;
}

// Any backend: the ops in turn.
Status delta_mix_in_turn(OpContext& context, const DeltaMixArgs& args);
// Defined where the build has CUDA.
bool delta_mix_cuda_fits(const OpContext& context, const DeltaMixArgs& args);
Status delta_mix_cuda(OpContext& context, const DeltaMixArgs& args);

}  // namespace mstar
