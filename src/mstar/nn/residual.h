// The residual stream of a decoder's step, and its rows normed for the product that reads them next.
#pragma once

#include "mstar/nn/linear.h"
#include "mstar/nn/rms_norm.h"

namespace mstar::nn {

// Norms of the stream are between a product that adds to it and one that reads it. Where the device can, the first
// leaves what the second needs (ops/linear/passed_norm.h), and the norm takes no kernel of its own. Thread: the step's
// owner.
class Residual {
 public:
  // The next reader of the stream: through `norm` or `layer_norm`, by `product`. Null: nobody, or a norm with a kernel
  // of its own, as a layer norm that is not folded into its product.
  struct Reader {
    const RmsNorm* norm = nullptr;
    const Linear* product = nullptr;
    bool gated = false;   // by run_gated()
    bool logits = false;  // into f32
    const LayerNorm* layer_norm = nullptr;
  };

  // x [tokens, dim] f32. Takes workspace_bytes() of the arena, which the caller rewinds.
  Residual(OpContext& ops, TensorView x);
  static std::size_t workspace_bytes(std::int64_t tokens, std::int64_t dim);

  TensorView x() const { return x_; }
  std::int64_t tokens() const { return x_.dim(0); }
  // The rows through `norm`, unless the product before has left them for it; then they are read as normed().
  Status norm(OpContext& ops, const RmsNorm& norm) { return run_unless_left(ops, norm); }
  Status norm(OpContext& ops, const LayerNorm& norm) { return run_unless_left(ops, norm); }
  const LinearInput& normed() const { return normed_; }
  // x += layer(from), for `next` to read.
  Status add(OpContext& ops, const Linear& layer, TensorView from, const Reader& next);

 private:
  template <class Norm>
  Status run_unless_left(OpContext& ops, const Norm& norm) {
    if (left_ == &norm) return ok_status();
    left_ = nullptr;
    normed_ = rows_;
    return norm.run(ops, x_, rows_);
  }
  PassedNorm passed_to(const Reader& next, std::int64_t parts) const;

  TensorView x_;
  TensorView rows_;             // [tokens, dim] of the activations' dtype
  TensorView squares_, sums_;   // [most_square_parts(), square_columns()], where norms may be passed
  LinearInput normed_;          // rows_, and the squares that they lack
  const void* left_ = nullptr;  // the norm that normed_ is already for
};

}  // namespace mstar::nn
