// Parts that Whisper's encoder and decoder share.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "mstar/base/value.h"
#include "mstar/models/whisper/whisper_config.h"
#include "mstar/nn/linear.h"
#include "mstar/ops/elementwise/elementwise.h"

namespace mstar::models::whisper {

// The feed-forward half of a layer: x += down(gelu(up(norm(x)))).
struct FeedForward {
  nn::LayerNorm norm;
  nn::Linear up, down;
  static Result<FeedForward> load(const nn::LoadContext& context, const std::string& name, const WhisperConfig& c) {
    FeedForward out;
    MSTAR_TRY_ASSIGN(out.norm, nn::LayerNorm::load(context, name + ".norm", c.dim));
    MSTAR_TRY_ASSIGN(out.up, nn::Linear::load(context, name + ".up", c.ffn_dim, c.dim));
    MSTAR_TRY_ASSIGN(out.down, nn::Linear::load(context, name + ".down", c.dim, c.ffn_dim));
    return out;
  }
  // x [M, dim] in place; normed [M, dim] and hidden [M, ffn_dim] are scratch.
  Status run(OpContext& ops, TensorView x, TensorView normed, TensorView hidden) const {
    MSTAR_TRY(norm.run(ops, x, normed));
    MSTAR_TRY(expand(ops, normed, hidden));
    return down.run(ops, hidden, x, Activation::none, x);
  }
  // hidden = gelu(up(normed)).
  Status expand(OpContext& ops, const nn::LinearInput& normed, TensorView hidden) const {
    // Of many rows a library makes the product on CUDA, and knows no such activation.
    if (ops.backend() != Backend::cuda || hidden.dim(0) < kManyRows)
      return up.run(ops, normed, hidden, Activation::gelu_erf);
    MSTAR_TRY(up.multiply(ops, normed.rows, hidden));
    return activate(ops, {.x = hidden, .activation = Activation::gelu_erf, .out = hidden, .bias = up.bias()});
  }
  std::size_t bytes() const { return norm.bytes() + up.bytes() + down.bytes(); }
  static constexpr std::int64_t kManyRows = 256;
};

// The attention half's weights: norm, fused projection and output.
struct Attention {
  nn::LayerNorm norm;
  nn::Linear in, out;
  static Result<Attention> load(const nn::LoadContext& context, const std::string& name, const std::string& in_name,
                                int in_parts, const WhisperConfig& c) {
    Attention a;
    MSTAR_TRY_ASSIGN(a.norm, nn::LayerNorm::load(context, name + ".norm", c.dim));
    MSTAR_TRY_ASSIGN(a.in, nn::Linear::load(context, name + "." + in_name, in_parts * c.dim, c.dim));
    MSTAR_TRY_ASSIGN(a.out, nn::Linear::load(context, name + ".out", c.dim, c.dim));
    return a;
  }
  std::size_t bytes() const { return norm.bytes() + in.bytes() + out.bytes(); }
};

// Part `index` of a fused projection [tokens, parts * dim] as heads: [tokens, heads, head_dim], tokens apart.
inline TensorView heads_of(TensorView fused, int index, const WhisperConfig& c) {
  TensorView view = fused;
  view.pointer = fused.data<std::byte>() + static_cast<std::size_t>(index) * c.dim * dtype_bytes(fused.dtype);
  view.shape = {fused.dim(0), c.heads, c.head_dim()};
  view.strides = {fused.stride(0), c.head_dim(), 1};
  return view;
}
// Contiguous rows [tokens, dim] as [tokens, heads, head_dim].
inline TensorView as_heads(TensorView rows, const WhisperConfig& c) {
  return rows.reshaped({rows.dim(0), c.heads, c.head_dim()});
}
// Part `index` of a fused bias [parts * dim]: [dim].
inline TensorView bias_of(TensorView fused, int index, const WhisperConfig& c) {
  return fused.slice(index * c.dim, (index + 1) * c.dim);
}
inline float scale_of(const WhisperConfig& c) { return 1.0f / std::sqrt(static_cast<float>(c.head_dim())); }
// Arena bytes of a temporary of `count` floats, or of `dtype`.
inline std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }
inline std::size_t elements(DType dtype, std::int64_t count) {
  return static_cast<std::size_t>(count) * dtype_bytes(dtype) + 256;
}

// What captured rows are recorded with: a value of zeros on the host.
inline Value zeros(DType dtype, const Dims& dims) {
  std::size_t bytes = dtype_bytes(dtype);
  for (const std::int64_t each : dims) bytes *= static_cast<std::size_t>(each);
  return HostValue(dtype, dims, std::vector<std::byte>(bytes));
}

}  // namespace mstar::models::whisper
