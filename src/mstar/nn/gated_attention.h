// Causal attention over a paged KV whose output is gated by the input, head by head.
#pragma once

#include <string>

#include "mstar/nn/head_swap.h"
#include "mstar/nn/residual.h"
#include "mstar/nn/rotary.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::nn {

// x += out(sigmoid(gate) * attention(rope(norm_q(q)), rope(norm_k(k)), v)), with q, gate, k and v from x's normed
// rows.
// Source: transformers Qwen3_5Attention (Qwen3NextAttention).
class GatedAttention {
 public:
  struct Dims {
    int dim = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;  // a multiple of 16; the rotary's dimensions are its first ones
    float norm_epsilon = 1e-6f;
    float norm_offset = 1.0f;  // of the weights of q_norm and k_norm; 0 where the checkpoint has added it
    int q_width() const { return heads * head_dim; }
    int kv_width() const { return kv_heads * head_dim; }
    int in_width() const { return 2 * q_width() + 2 * kv_width(); }
  };
  // Homes: NAME.qkv [in_width, dim], rows of each head's query and gate, then keys, then values; NAME.out [dim,
  // q_width]; NAME.q_norm, NAME.k_norm [head_dim]. A rank of several takes its heads' rows of qkv and columns of out.
  // Of ranks that split sequences each has some of those heads in attention.
  static Result<GatedAttention> load(const LoadContext& context, const std::string& name, const Dims& dims);
  // x has the own rows of the step's (row_split.h), positions [tokens] i32 is of all; `kv` is this layer's, its lengths
  // count the rows' tokens; `next` reads x behind it. Thread: the step's owner.
  Status run(OpContext& ops, Residual& x, TensorView positions, const Rotary& rotary, RaggedView rows, PagedKvView kv,
             const Residual::Reader& next) const;
  Residual::Reader reader(const RmsNorm& norm) const { return {.norm = &norm, .product = &qkv_}; }
  // Arena bytes that run() takes and gives back, for so many rows of the step.
  std::size_t workspace_bytes(int tokens, int num_threads, const Rotary& rotary) const;
  std::size_t bytes() const { return qkv_.bytes() + out_.bytes() + q_norm_.bytes() + k_norm_.bytes(); }

 private:
  Dims dims_;                     // of this rank's weights
  int heads_ = 0, kv_heads_ = 0;  // of them, those that it attends with
  HeadSwap swap_;
  Linear qkv_, out_;
  RmsNorm q_norm_, k_norm_;
};

}  // namespace mstar::nn
