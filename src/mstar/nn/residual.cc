#include "mstar/nn/residual.h"

#include <algorithm>

namespace mstar::nn {

Residual::Residual(OpContext& ops, TensorView x) : x_(x), rows_(ops.temporary(ops.activations, x.shape)) {
  if (ops.backend() == Backend::cuda && ops.activations == DType::bf16 && tokens() <= kMostPassedRows)
    squares_ = ops.temporary(DType::f32, {most_square_parts(x.dim(1)), square_columns(tokens())});
}

std::size_t Residual::workspace_bytes(std::int64_t tokens, std::int64_t dim) {
  const std::int64_t squares = most_square_parts(dim) * square_columns(std::min(tokens, kMostPassedRows));
  return static_cast<std::size_t>(tokens * dim + squares) * sizeof(float) + 2 * 256;
}

Status Residual::norm(OpContext& ops, const RmsNorm& norm) {
  if (left_ == &norm) return ok_status();
  left_ = nullptr;
  normed_ = rows_;
  return norm.run(ops, x_, rows_);
}

Status Residual::add(OpContext& ops, const Linear& layer, TensorView from, const Reader& next) {
  left_ = nullptr;
  PassedNorm passed;
  if (squares_.pointer && next.norm && next.product) {
    const std::int64_t parts =
        layer.passed_norm_parts(ops, from, x_, *next.product, next.gated, next.logits ? DType::f32 : ops.activations);
    if (parts > 0) {
      passed = {.gains = next.norm->weight(),
                .gain_offset = next.norm->weight_offset(),
                .rows = rows_,
                .squares = squares_.slice(0, parts)};
      normed_ = {rows_, {.parts = passed.squares, .width = x_.dim(1), .epsilon = next.norm->epsilon()}};
      left_ = next.norm;
    }
  }
  return layer.add(ops, from, x_, passed);
}

}  // namespace mstar::nn
