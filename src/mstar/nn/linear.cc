#include "mstar/nn/linear.h"

namespace mstar::nn {

Result<Tensor> load_f32(const LoadContext& context, const std::string& home, const Shape& shape) {
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded, context.weights.take(home, shape));
  auto out = loaded.to_tensor(context.device, DType::f32);
  context.weights.release_pages(loaded);
  return out;
}

Result<Linear> Linear::load(const LoadContext& context, const std::string& name, int num_outputs, int num_inputs,
                            bool has_bias) {
  Linear out;
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded,
                   context.weights.take(name + ".weight", {num_outputs, num_inputs}));
  const weights::AlignedParts aligned = loaded.aligned();
  context.weights.release_pages(loaded);  // what was copied is read from the copy
  std::vector<LinearSource> sources;
  for (const auto& part : aligned.parts()) sources.push_back({part.weight, part.row_scale});
  MSTAR_TRY_ASSIGN(out.weight_, LinearWeight::pack(context.device, sources, context.storage, context.pool));
  context.weights.release_pages(loaded);
  if (has_bias) {
    MSTAR_TRY_ASSIGN(out.bias_, load_f32(context, name + ".bias", {num_outputs}));
  }
  return out;
}

Result<Linear> Linear::pack(Device& device, TensorView weight, Tensor bias, DType storage) {
  Linear out;
  MSTAR_TRY_ASSIGN(out.weight_, LinearWeight::pack(device, LinearSource{.weight = weight}, storage));
  out.bias_ = std::move(bias);
  return out;
}

Status Linear::run(OpContext& ops, TensorView x, TensorView out, Activation activation, TensorView residual) const {
  return linear(ops, {.x = x,
                      .weight = &weight_,
                      .bias = bias_ ? bias_.view() : TensorView(),
                      .residual = residual,
                      .activation = activation,
                      .out = out});
}

Result<LayerNorm> LayerNorm::load(const LoadContext& context, const std::string& name, int dim, float epsilon) {
  LayerNorm out;
  out.epsilon_ = epsilon;
  MSTAR_TRY_ASSIGN(out.weight_, load_f32(context, name + ".weight", {dim}));
  MSTAR_TRY_ASSIGN(out.bias_, load_f32(context, name + ".bias", {dim}));
  return out;
}

Status LayerNorm::run(OpContext& ops, TensorView x, TensorView out) const {
  return layer_norm(ops, {.x = x, .weight = weight_.view(), .bias = bias_.view(), .epsilon = epsilon_, .out = out});
}

}  // namespace mstar::nn
