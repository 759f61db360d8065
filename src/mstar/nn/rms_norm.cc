#include "mstar/nn/rms_norm.h"

#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar::nn {

Result<RmsNorm> RmsNorm::load(const LoadContext& context, const std::string& name, int dim, float epsilon,
                              float weight_offset) {
  RmsNorm out;
  out.epsilon_ = epsilon;
  out.weight_offset_ = weight_offset;
  MSTAR_TRY_ASSIGN(out.weight_, load_f32(context, name + ".weight", {dim}));
  return out;
}

Status RmsNorm::run(OpContext& ops, TensorView x, TensorView out, TensorView gate) const {
  return rms_norm(ops, {.x = x,
                        .weight = weight_.view(),
                        .epsilon = epsilon_,
                        .weight_offset = weight_offset_,
                        .out = out,
                        .gate = gate});
}

}  // namespace mstar::nn
