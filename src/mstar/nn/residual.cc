#include "mstar/nn/residual.h"

#include <algorithm>

namespace mstar::nn {

Residual::Residual(OpContext& ops, TensorView x) : x_(x), rows_(ops.temporary(ops.activations, x.shape)) {
  if (ops.backend() != Backend::cuda || ops.activations != DType::bf16 || tokens() > kMostPassedRows) return;
  const Shape parts{most_square_parts(x.dim(1)), square_columns(tokens())};
  squares_ = ops.temporary(DType::f32, parts);
  sums_ = ops.temporary(DType::f32, parts);
}

std::size_t Residual::workspace_bytes(std::int64_t tokens, std::int64_t dim) {
  const std::int64_t parts = most_square_parts(dim) * square_columns(std::min(tokens, kMostPassedRows));
  return static_cast<std::size_t>(tokens * dim + 2 * parts) * sizeof(float) + 3 * 256;
}

PassedNorm Residual::passed_to(const Reader& next, std::int64_t parts) const {
  PassedNorm out{.rows = rows_, .squares = squares_.slice(0, parts)};
  if (next.norm) {
    out.gains = next.norm->weight();
    out.gain_offset = next.norm->weight_offset();
  } else {
    out.gains = next.layer_norm->weight();
    out.sums = sums_.slice(0, parts);
  }
  return out;
}

Status Residual::add(OpContext& ops, const Linear& layer, TensorView from, const Reader& next) {
  left_ = nullptr;
  PassedNorm passed;
  const bool may_pass =
      squares_.pointer && next.product && (next.norm || (next.layer_norm && next.product->is_folded()));
  if (may_pass) {
    const std::int64_t parts =
        layer.passed_norm_parts(ops, from, x_, *next.product, next.gated, next.logits ? DType::f32 : ops.activations);
    if (parts > 0) {
      passed = passed_to(next, parts);
      normed_ = {rows_,
                 {.parts = passed.squares,
                  .width = x_.dim(1),
                  .epsilon = next.norm ? next.norm->epsilon() : next.layer_norm->epsilon(),
                  .sums = passed.sums}};
      left_ = next.norm ? static_cast<const void*>(next.norm) : next.layer_norm;
    }
  }
  return layer.add(ops, from, x_, passed);
}

}  // namespace mstar::nn
