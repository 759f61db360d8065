#include "mstar/nn/gated_attention.h"

#include <algorithm>
#include <cmath>

#include "mstar/nn/shards.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/columns.h"
#include "mstar/ops/qkv_prepare/qkv_prepare.h"

namespace mstar::nn {
namespace {

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

// The heads of columns [begin, ...) of a projection, `apart` columns from each other.
TensorView heads_apart(TensorView projection, std::int64_t begin, int heads, int head_dim, std::int64_t apart) {
  TensorView view = head_columns(projection, begin, heads, head_dim);
  view.strides[1] = apart;
  return view;
}

}  // namespace

Result<GatedAttention> GatedAttention::load(const LoadContext& context, const std::string& name, const Dims& dims) {
  const Ranks ranks = context.ranks;
  MSTAR_TRY_ASSIGN(const AxisRange heads, own_share("query heads", dims.heads, ranks));
  MSTAR_TRY_ASSIGN(const AxisRange kv_heads, own_kv_heads(dims.kv_heads, ranks));
  const AxisRange q = heads.scaled(dims.head_dim), q_and_gate = heads.scaled(2 * dims.head_dim);
  const AxisRange k = kv_heads.scaled(dims.head_dim).shifted(2 * dims.q_width()), v = k.shifted(dims.kv_width());
  GatedAttention out;
  out.dims_ = dims;
  out.dims_.heads = static_cast<int>(heads.count());
  out.dims_.kv_heads = static_cast<int>(kv_heads.count());
  const Dims& own = out.dims_;
  MSTAR_TRY_ASSIGN(const SharedHeads shared, share_heads(own.heads, own.kv_heads, context.sequence));
  out.heads_ = shared.num_heads;
  out.kv_heads_ = shared.num_kv_heads;
  out.swap_ =
      swap_of_heads(shared, {.unit = 2 * own.head_dim, .kv_begin = 2 * own.q_width(), .kv_width = own.kv_width()},
                    own.head_dim, context.sequence);
  MSTAR_TRY_ASSIGN(out.qkv_, Linear::load(context, name + ".qkv", dims.in_width(), dims.dim, false,
                                          rows_cut(ranks, {q_and_gate, k, v})));
  MSTAR_TRY_ASSIGN(out.out_,
                   Linear::load(context, name + ".out", dims.dim, dims.q_width(), false, columns_cut(ranks, {q})));
  MSTAR_TRY_ASSIGN(out.q_norm_,
                   RmsNorm::load(context, name + ".q_norm", dims.head_dim, dims.norm_epsilon, dims.norm_offset));
  MSTAR_TRY_ASSIGN(out.k_norm_,
                   RmsNorm::load(context, name + ".k_norm", dims.head_dim, dims.norm_epsilon, dims.norm_offset));
  return out;
}

Status GatedAttention::run(OpContext& ops, Residual& x, TensorView positions, const Rotary& rotary, RaggedView rows,
                           PagedKvView kv, const Residual::Reader& next) const {
  const auto mark = ops.arena.mark();
  const std::int64_t tokens = positions.dim(0), head_dim = dims_.head_dim;
  const TensorView projected = ops.temporary(ops.activations, {x.tokens(), dims_.in_width()});
  const TensorView q = ops.temporary(ops.activations, {tokens, heads_, head_dim});
  TensorView mixed = swap_.room(ops, tokens, dims_.q_width());
  MSTAR_TRY(qkv_.run(ops, x.normed(), projected));
  MSTAR_TRY_ASSIGN(const TensorView in, swap_.to_heads(ops, projected, tokens));
  const TensorView stored_q = heads_apart(in, 0, heads_, dims_.head_dim, 2 * head_dim);
  const TensorView gate = heads_apart(in, head_dim, heads_, dims_.head_dim, 2 * head_dim);
  const TensorView k = head_columns(in, 2 * heads_ * head_dim, kv_heads_, dims_.head_dim);
  const TensorView v = head_columns(in, (2 * heads_ + kv_heads_) * head_dim, kv_heads_, dims_.head_dim);
  MSTAR_TRY(qkv_prepare(ops, {.q = stored_q,
                              .k = k,
                              .v = v,
                              .q_weight = q_norm_.weight(),
                              .k_weight = k_norm_.weight(),
                              .epsilon = q_norm_.epsilon(),
                              .weight_offset = q_norm_.weight_offset(),
                              .positions = positions,
                              .inverse_frequencies = rotary.frequencies(),
                              .interleaved = rotary.interleaved(),
                              .rows = rows,
                              .kv = kv,
                              .q_out = q,
                              .pair_axes = rotary.pair_axes()}));
  MSTAR_TRY(attention_paged(ops, {.q = q,
                                  .rows = rows,
                                  .kv = kv,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                  .out = mixed.reshaped({tokens, heads_, head_dim}),
                                  .gate = gate}));
  MSTAR_TRY_ASSIGN(mixed, swap_.to_rows(ops, mixed, dims_.q_width()));
  MSTAR_TRY(x.add(ops, out_, mixed, next));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t GatedAttention::workspace_bytes(int tokens, int num_threads, const Rotary& rotary) const {
  const std::int64_t t = tokens;
  return floats(t * dims_.in_width()) + 2 * floats(t * dims_.q_width()) + swap_.workspace_bytes(t, dims_.q_width()) +
         std::max({attention_paged_workspace_bytes(dims_.head_dim, num_threads), rotary.workspace_bytes(num_threads),
                   qkv_.workspace_bytes(tokens, num_threads), out_.workspace_bytes(tokens, num_threads)});
}

}  // namespace mstar::nn
