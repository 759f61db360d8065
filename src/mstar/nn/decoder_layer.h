// One layer of a causal decoder of the Llama kind over a paged KV: grouped queries, rotary positions, gated
// feed-forward.
#pragma once

#include <string>

#include "mstar/nn/head_swap.h"
#include "mstar/nn/residual.h"
#include "mstar/nn/rotary.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::nn {

// x += out(attention(rope(norm_q(q)), rope(norm_k(k)), v)) of norm1(x); x += down(silu(gate) * up) of norm2(x).
// Source: transformers LlamaDecoderLayer, Qwen2DecoderLayer (qkv_bias), Qwen3DecoderLayer (qk_norm).
class DecoderLayer {
 public:
  struct Dims {
    int dim = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;  // a multiple of 16
    int ffn_dim = 0;
    float norm_epsilon = 1e-6f;
    bool qkv_bias = false;
    bool qk_norm = false;  // RMS over each head, before the rotation
    int q_width() const { return heads * head_dim; }
    int kv_width() const { return kv_heads * head_dim; }
    int qkv_width() const { return q_width() + 2 * kv_width(); }
  };
  // Homes: NAME.norm1, .norm2 [dim]; NAME.qkv [qkv_width, dim]; NAME.out [dim, q_width]; NAME.gate_up [2 ffn_dim, dim];
  // NAME.down [dim, ffn_dim]; with qk_norm NAME.q_norm, .k_norm [head_dim]. A rank of several takes its heads' rows of
  // qkv and columns of out, its rows of gate and up and columns of down; norms are whole. Of ranks that split sequences
  // each has some of those heads in attention.
  static Result<DecoderLayer> load(const LoadContext& context, const std::string& name, const Dims& dims);
  // x has the own rows of the step's (row_split.h), positions [tokens] i32 is of all; `kv` is this layer's, its lengths
  // count the rows' tokens; `next` reads x behind the layer. Thread: the step's owner.
  Status run(OpContext& ops, Residual& x, TensorView positions, const Rotary& rotary, RaggedView rows, PagedKvView kv,
             const Residual::Reader& next) const;
  Residual::Reader reader() const { return {.norm = &norm1_, .product = &qkv_}; }
  // Arena bytes that run() takes and gives back, for so many rows of the step.
  std::size_t workspace_bytes(int tokens, int num_threads, const Rotary& rotary) const;
  std::size_t bytes() const;

 private:
  Status attend(OpContext& ops, Residual& x, TensorView positions, const Rotary& rotary, RaggedView rows,
                PagedKvView kv) const;
  Status feed_forward(OpContext& ops, Residual& x, const Residual::Reader& next) const;

  Dims dims_;                     // of this rank's weights
  int heads_ = 0, kv_heads_ = 0;  // of them, those that it attends with
  HeadSwap swap_;
  RmsNorm norm1_, norm2_, q_norm_, k_norm_;
  Linear qkv_, out_, gate_up_, down_;
};

}  // namespace mstar::nn
