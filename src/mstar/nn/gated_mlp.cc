#include "mstar/nn/gated_mlp.h"

#include <algorithm>

#include "mstar/nn/shards.h"

namespace mstar::nn {

Result<GatedMlp> GatedMlp::load(const LoadContext& context, const std::string& name, int dim, int ffn_dim) {
  const Ranks ranks = context.ranks;
  MSTAR_TRY_ASSIGN(const AxisRange own, own_share("units of the feed-forward", ffn_dim, ranks));
  GatedMlp out;
  out.ffn_dim_ = static_cast<int>(own.count());
  MSTAR_TRY_ASSIGN(out.gate_up_, Linear::load(context, name + ".gate_up", 2 * ffn_dim, dim, false,
                                              rows_cut(ranks, {own, own.shifted(ffn_dim)})));
  MSTAR_TRY_ASSIGN(out.down_, Linear::load(context, name + ".down", dim, ffn_dim, false, columns_cut(ranks, {own})));
  return out;
}

Status GatedMlp::run(OpContext& ops, Residual& x, const Residual::Reader& next) const {
  const auto mark = ops.arena.mark();
  const TensorView hidden = ops.temporary(ops.activations, {x.tokens(), ffn_dim_});
  MSTAR_TRY(gate_up_.run_gated(ops, x.normed(), hidden));
  MSTAR_TRY(x.add(ops, down_, hidden, next));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t GatedMlp::workspace_bytes(int tokens, int num_threads) const {
  return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(ffn_dim_) * sizeof(float) + 256 +
         std::max(gate_up_.gated_workspace_bytes(tokens, num_threads), down_.workspace_bytes(tokens, num_threads));
}

}  // namespace mstar::nn
