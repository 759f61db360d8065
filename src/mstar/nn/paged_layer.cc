#include "mstar/nn/paged_layer.h"

#include <algorithm>
#include <cmath>

#include "mstar/ops/attention/attention.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar::nn {
namespace {

// Part `index` of a fused projection [tokens, 3 * width] as heads.
TensorView part_of(TensorView fused, int index, int heads, int head_dim) {
  TensorView view = fused;
  view.pointer = fused.data<float>() + static_cast<std::ptrdiff_t>(index) * heads * head_dim;
  view.shape = {fused.dim(0), heads, head_dim};
  view.strides = {fused.stride(0), head_dim, 1};
  return view;
}

}  // namespace

Result<PagedLayer> PagedLayer::seeded(const SeededWeights& weights, const std::string& name, const Dims& dims) {
  PagedLayer layer;
  layer.dims_ = dims;
  const int width = dims.heads * dims.head_dim;
  MSTAR_TRY_ASSIGN(layer.norm1_, weights.tensor(name + ".norm1", {dims.dim}, 0.1f));
  MSTAR_TRY_ASSIGN(layer.norm2_, weights.tensor(name + ".norm2", {dims.dim}, 0.1f));
  MSTAR_TRY_ASSIGN(layer.qkv_, weights.linear(name + ".qkv", 3 * width, dims.dim));
  MSTAR_TRY_ASSIGN(layer.out_, weights.linear(name + ".out", dims.dim, width));
  MSTAR_TRY_ASSIGN(layer.up_, weights.linear(name + ".up", dims.ffn_dim, dims.dim));
  MSTAR_TRY_ASSIGN(layer.down_, weights.linear(name + ".down", dims.dim, dims.ffn_dim));
  return layer;
}

Status PagedLayer::run(OpContext& ops, TensorView x, RaggedView rows, PagedKvView kv) const {
  const auto mark = ops.arena.mark();
  const std::int64_t tokens = x.dim(0);
  const int width = dims_.heads * dims_.head_dim;
  TensorView normed = ops.temporary(DType::f32, {tokens, dims_.dim});
  TensorView qkv = ops.temporary(DType::f32, {tokens, 3 * width});
  TensorView mixed = ops.temporary(DType::f32, {tokens, width});
  TensorView hidden = ops.temporary(DType::f32, {tokens, dims_.ffn_dim});
  const auto part = [&](int index) { return part_of(qkv, index, dims_.heads, dims_.head_dim); };
  MSTAR_TRY(rms_norm(ops, {.x = x, .weight = norm1_.view(), .weight_offset = 1.0f, .out = normed}));
  MSTAR_TRY(qkv_.run(ops, normed, qkv));
  MSTAR_TRY(kv_append(ops, {.keys = part(1), .values = part(2), .rows = rows, .kv = kv}));
  MSTAR_TRY(attention_paged(ops, {.q = part(0),
                                  .rows = rows,
                                  .kv = kv,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(dims_.head_dim)),
                                  .out = mixed.reshaped({tokens, dims_.heads, dims_.head_dim})}));
  MSTAR_TRY(out_.run(ops, mixed, x, Activation::none, x));
  MSTAR_TRY(rms_norm(ops, {.x = x, .weight = norm2_.view(), .weight_offset = 1.0f, .out = normed}));
  MSTAR_TRY(up_.run(ops, normed, hidden, Activation::gelu_tanh));
  MSTAR_TRY(down_.run(ops, hidden, x, Activation::none, x));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t PagedLayer::workspace_bytes(int tokens, int num_threads) const {
  const auto width = static_cast<std::size_t>(dims_.heads * dims_.head_dim);
  const std::size_t floats =
      static_cast<std::size_t>(tokens) * (static_cast<std::size_t>(dims_.dim + dims_.ffn_dim) + 4 * width);
  return floats * sizeof(float) + 4 * 256 +
         std::max({attention_paged_workspace_bytes(dims_.head_dim, num_threads),
                   qkv_.workspace_bytes(tokens, num_threads), out_.workspace_bytes(tokens, num_threads),
                   up_.workspace_bytes(tokens, num_threads), down_.workspace_bytes(tokens, num_threads)});
}

std::size_t PagedLayer::bytes() const {
  return norm1_.bytes() + norm2_.bytes() + qkv_.bytes() + out_.bytes() + up_.bytes() + down_.bytes();
}

}  // namespace mstar::nn
