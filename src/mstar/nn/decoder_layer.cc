#include "mstar/nn/decoder_layer.h"

#include <algorithm>
#include <cmath>

#include "mstar/nn/shards.h"
#include "mstar/ops/attention/attention.h"
#include "mstar/ops/columns.h"
#include "mstar/ops/qkv_prepare/qkv_prepare.h"

namespace mstar::nn {
namespace {

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float) + 256; }

}  // namespace

Result<DecoderLayer> DecoderLayer::load(const LoadContext& context, const std::string& name, const Dims& dims) {
  const Ranks ranks = context.ranks;
  MSTAR_TRY_ASSIGN(const AxisRange heads, own_share("query heads", dims.heads, ranks));
  MSTAR_TRY_ASSIGN(const AxisRange kv_heads, own_kv_heads(dims.kv_heads, ranks));
  MSTAR_TRY_ASSIGN(const AxisRange ffn, own_share("units of the feed-forward", dims.ffn_dim, ranks));
  const AxisRange q = heads.scaled(dims.head_dim);
  const AxisRange k = kv_heads.scaled(dims.head_dim).shifted(dims.q_width()), v = k.shifted(dims.kv_width());
  DecoderLayer layer;
  layer.dims_ = dims;
  layer.dims_.heads = static_cast<int>(heads.count());
  layer.dims_.kv_heads = static_cast<int>(kv_heads.count());
  layer.dims_.ffn_dim = static_cast<int>(ffn.count());
  const Dims& own = layer.dims_;
  MSTAR_TRY_ASSIGN(const SharedHeads shared, share_heads(own.heads, own.kv_heads, context.sequence));
  layer.heads_ = shared.num_heads;
  layer.kv_heads_ = shared.num_kv_heads;
  layer.swap_ = swap_of_heads(shared, {.unit = own.head_dim, .kv_begin = own.q_width(), .kv_width = own.kv_width()},
                              own.head_dim, context.sequence);
  MSTAR_TRY_ASSIGN(layer.norm1_, RmsNorm::load(context, name + ".norm1", dims.dim, dims.norm_epsilon));
  MSTAR_TRY_ASSIGN(layer.norm2_, RmsNorm::load(context, name + ".norm2", dims.dim, dims.norm_epsilon));
  if (dims.qk_norm) {
    MSTAR_TRY_ASSIGN(layer.q_norm_, RmsNorm::load(context, name + ".q_norm", dims.head_dim, dims.norm_epsilon));
    MSTAR_TRY_ASSIGN(layer.k_norm_, RmsNorm::load(context, name + ".k_norm", dims.head_dim, dims.norm_epsilon));
  }
  MSTAR_TRY_ASSIGN(layer.qkv_, Linear::load(context, name + ".qkv", dims.qkv_width(), dims.dim, dims.qkv_bias,
                                            rows_cut(ranks, {q, k, v})));
  MSTAR_TRY_ASSIGN(layer.out_,
                   Linear::load(context, name + ".out", dims.dim, dims.q_width(), false, columns_cut(ranks, {q})));
  MSTAR_TRY_ASSIGN(layer.gate_up_, Linear::load(context, name + ".gate_up", 2 * dims.ffn_dim, dims.dim, false,
                                                rows_cut(ranks, {ffn, ffn.shifted(dims.ffn_dim)})));
  MSTAR_TRY_ASSIGN(layer.down_,
                   Linear::load(context, name + ".down", dims.dim, dims.ffn_dim, false, columns_cut(ranks, {ffn})));
  return layer;
}

Status DecoderLayer::attend(OpContext& ops, Residual& x, TensorView positions, const Rotary& rotary, RaggedView rows,
                            PagedKvView kv) const {
  const std::int64_t tokens = positions.dim(0), q_width = heads_ * dims_.head_dim,
                     kv_width = kv_heads_ * dims_.head_dim;
  const TensorView projected = ops.temporary(ops.activations, {x.tokens(), dims_.qkv_width()});
  TensorView mixed = swap_.room(ops, tokens, dims_.q_width());
  MSTAR_TRY(qkv_.run(ops, x.normed(), projected));
  MSTAR_TRY_ASSIGN(const TensorView qkv, swap_.to_heads(ops, projected, tokens));
  const TensorView q = head_columns(qkv, 0, heads_, dims_.head_dim);
  const TensorView k = head_columns(qkv, q_width, kv_heads_, dims_.head_dim);
  const TensorView v = head_columns(qkv, q_width + kv_width, kv_heads_, dims_.head_dim);
  MSTAR_TRY(qkv_prepare(ops, {.q = q,
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
                                  .scale = 1.0f / std::sqrt(static_cast<float>(dims_.head_dim)),
                                  .out = mixed.reshaped({tokens, heads_, dims_.head_dim})}));
  MSTAR_TRY_ASSIGN(mixed, swap_.to_rows(ops, mixed, dims_.q_width()));
  return x.add(ops, out_, mixed, {.norm = &norm2_, .product = &gate_up_, .gated = true});
}

Status DecoderLayer::feed_forward(OpContext& ops, Residual& x, const Residual::Reader& next) const {
  const TensorView hidden = ops.temporary(ops.activations, {x.tokens(), dims_.ffn_dim});
  MSTAR_TRY(gate_up_.run_gated(ops, x.normed(), hidden));
  return x.add(ops, down_, hidden, next);
}

Status DecoderLayer::run(OpContext& ops, Residual& x, TensorView positions, const Rotary& rotary, RaggedView rows,
                         PagedKvView kv, const Residual::Reader& next) const {
  const auto mark = ops.arena.mark();
  MSTAR_TRY(x.norm(ops, norm1_));
  MSTAR_TRY(attend(ops, x, positions, rotary, rows, kv));
  ops.arena.rewind(mark);
  MSTAR_TRY(x.norm(ops, norm2_));
  MSTAR_TRY(feed_forward(ops, x, next));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t DecoderLayer::workspace_bytes(int tokens, int num_threads, const Rotary& rotary) const {
  const std::int64_t t = tokens;
  return std::max(
             floats(t * dims_.qkv_width()) + floats(t * dims_.q_width()) + swap_.workspace_bytes(t, dims_.q_width()),
             floats(t * dims_.ffn_dim)) +
         std::max({attention_paged_workspace_bytes(dims_.head_dim, num_threads), rotary.workspace_bytes(num_threads),
                   qkv_.workspace_bytes(tokens, num_threads), out_.workspace_bytes(tokens, num_threads),
                   gate_up_.gated_workspace_bytes(tokens, num_threads), down_.workspace_bytes(tokens, num_threads)});
}

std::size_t DecoderLayer::bytes() const {
  return norm1_.bytes() + norm2_.bytes() + q_norm_.bytes() + k_norm_.bytes() + qkv_.bytes() + out_.bytes() +
         gate_up_.bytes() + down_.bytes();
}

}  // namespace mstar::nn
