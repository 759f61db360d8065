// The gated feed-forward of decoders.
#pragma once

#include <string>

#include "mstar/nn/residual.h"

namespace mstar::nn {

// Homes: NAME.gate_up [2 ffn_dim, dim], NAME.down [dim, ffn_dim]. A rank of several takes its rows of gate and up, and
// its columns of down.
class GatedMlp {
 public:
  static Result<GatedMlp> load(const LoadContext& context, const std::string& name, int dim, int ffn_dim);
  // x += down(silu(gate) * up) of its normed rows, for `next` to read. Thread: the step's owner.
  Status run(OpContext& ops, Residual& x, const Residual::Reader& next) const;
  Residual::Reader reader(const RmsNorm& norm) const { return {.norm = &norm, .product = &gate_up_, .gated = true}; }
  // Arena bytes that run() takes and gives back.
  std::size_t workspace_bytes(int tokens, int num_threads) const;
  std::size_t bytes() const { return gate_up_.bytes() + down_.bytes(); }

 private:
  int ffn_dim_ = 0;  // of this rank
  Linear gate_up_, down_;
};

}  // namespace mstar::nn
