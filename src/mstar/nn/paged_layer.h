// One layer of a causal transformer over a paged KV.
#pragma once

#include <string>

#include "mstar/nn/seeded.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::nn {

// x += out(attention(qkv(norm(x)))); x += down(gelu_tanh(up(norm(x)))). Norms are RMS, stored as weight - 1.
class PagedLayer {
 public:
  struct Dims {
    int dim = 0;
    int heads = 0;
    int head_dim = 0;  // a multiple of 16
    int ffn_dim = 0;
  };
  // NAME.norm1, .norm2 [dim] times 0.1; NAME.qkv, .out, .up, .down.
  static Result<PagedLayer> seeded(const SeededWeights& weights, const std::string& name, const Dims& dims);
  // x [tokens, dim] f32 in place; `kv` is this layer's, its lengths count the rows' tokens. Thread: the step's owner.
  Status run(OpContext& ops, TensorView x, RaggedView rows, PagedKvView kv) const;
  // Arena bytes that run() takes and gives back.
  std::size_t workspace_bytes(int tokens, int num_threads) const;
  std::size_t bytes() const;

 private:
  Dims dims_;
  Tensor norm1_, norm2_;
  Linear qkv_, out_, up_, down_;
};

}  // namespace mstar::nn
