// Parts that Whisper's encoder and decoder share.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "mstar/base/value.h"
#include "mstar/engine/component_body.h"
#include "mstar/models/whisper/whisper_config.h"
#include "mstar/nn/linear.h"
#include "mstar/nn/shards.h"
#include "mstar/ops/columns.h"
#include "mstar/ops/elementwise/elementwise.h"

namespace mstar::models::whisper {

inline nn::LoadContext load_context(const engine::BuildContext& build, const WhisperConfig& c) {
  return {.weights = build.weights,
          .device = build.device,
          .storage = c.storage.of(build.component),
          .pool = build.pool,
          .batch_invariant = c.batch_invariant,
          .ranks = build.ranks(),
          .sequence = build.sequence()};
}

// A rank's part of the heads and of the feed-forward's units; alone: all.
struct Part {
  Ranks ranks;
  AxisRange heads, units;
  int head_dim = 0;
  static Result<Part> of(const WhisperConfig& c, Ranks ranks) {
    Part out{.ranks = ranks, .heads = {}, .units = {}, .head_dim = c.head_dim()};
    MSTAR_TRY_ASSIGN(out.heads, nn::own_share("query heads", c.heads, ranks));
    MSTAR_TRY_ASSIGN(out.units, nn::own_share("units of the feed-forward", c.ffn_dim, ranks));
    return out;
  }
  int num_heads() const { return static_cast<int>(heads.count()); }
  int num_units() const { return static_cast<int>(units.count()); }
  int width() const { return num_heads() * head_dim; }
  // Of the outputs of `num_parts` projections side by side, each `dim` wide.
  weights::Cut outputs(int num_parts, int dim) const {
    std::vector<AxisRange> ranges;
    for (int i = 0; i < num_parts; ++i) ranges.push_back(heads.scaled(head_dim).shifted(i * dim));
    return nn::rows_cut(ranks, std::move(ranges));
  }
  weights::Cut inputs() const { return nn::columns_cut(ranks, {heads.scaled(head_dim)}); }
};

// The feed-forward half of a layer: x += down(gelu(up(norm(x)))). A rank has its units of up and down.
struct FeedForward {
  nn::LayerNorm norm;
  nn::Linear up, down;
  static Result<FeedForward> load(const nn::LoadContext& context, const std::string& name, const WhisperConfig& c,
                                  const Part& part) {
    FeedForward out;
    MSTAR_TRY_ASSIGN(out.norm, nn::LayerNorm::load(context, name + ".norm", c.dim));
    MSTAR_TRY_ASSIGN(out.up, nn::Linear::load(context, name + ".up", c.ffn_dim, c.dim, true,
                                              nn::rows_cut(part.ranks, {part.units})));
    MSTAR_TRY_ASSIGN(out.down, nn::Linear::load(context, name + ".down", c.dim, c.ffn_dim, true,
                                                nn::columns_cut(part.ranks, {part.units})));
    return out;
  }
  // x [M, dim] in place; normed [M, dim] and hidden [M, units of the rank] are scratch.
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

// The attention half's weights: norm, fused projection and output. A rank has its heads of the latter two.
struct Attention {
  nn::LayerNorm norm;
  nn::Linear in, out;
  static Result<Attention> load(const nn::LoadContext& context, const std::string& name, const std::string& in_name,
                                int in_parts, const WhisperConfig& c, const Part& part) {
    Attention a;
    MSTAR_TRY_ASSIGN(a.norm, nn::LayerNorm::load(context, name + ".norm", c.dim));
    MSTAR_TRY_ASSIGN(a.in, nn::Linear::load(context, name + "." + in_name, in_parts * c.dim, c.dim, true,
                                            part.outputs(in_parts, c.dim)));
    MSTAR_TRY_ASSIGN(a.out, nn::Linear::load(context, name + ".out", c.dim, c.dim, true, part.inputs()));
    return a;
  }
  std::size_t bytes() const { return norm.bytes() + in.bytes() + out.bytes(); }
};

// Projection `index` of several side by side [tokens, n * width] as heads: [tokens, heads, head_dim], tokens apart.
inline TensorView heads_of(TensorView fused, int index, const Part& part) {
  return head_columns(fused, static_cast<std::int64_t>(index) * part.width(), part.num_heads(), part.head_dim);
}
// Contiguous rows [tokens, width] as [tokens, heads, head_dim].
inline TensorView as_heads(TensorView rows, const Part& part) {
  return rows.reshaped({rows.dim(0), part.num_heads(), part.head_dim});
}
// Of the bias of several projections: [width].
inline TensorView bias_of(TensorView fused, int index, const Part& part) {
  return fused.slice(index * part.width(), (index + 1) * part.width());
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
