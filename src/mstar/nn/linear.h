// Blocks with weights: linear layers and norms, loaded by home name.
#pragma once

#include <string>
#include <vector>

#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/op_context.h"
#include "mstar/weights/weight_map.h"

namespace mstar::nn {

// Where and how a block's weights are kept.
struct LoadContext {
  weights::WeightMap& weights;
  Device& device;
  DType storage = DType::f32;  // of matrices: f32, f16, bf16 or i8; vectors are f32
  ThreadPool* pool = nullptr;  // packs weights faster
  // On CUDA: one order of sums for every number of rows (LinearWeight::keep_one_order).
  bool batch_invariant = false;
  // Matrices that the checkpoint holds in blocks stay in blocks where the device computes with them (CPU). If false, or
  // elsewhere, they become `storage` like the others.
  bool keep_blocks = true;
  // This rank of those that each hold a part: blocks cut what they load (shards.h). Default: alone.
  Ranks ranks = {};
  // This rank of those that have the other rows of a step: blocks with heads swap them for rows (head_swap.h).
  Ranks sequence = {};
};

// Rows that a product reads; with squares they lack a norm's factor (ops/linear/passed_norm.h).
struct LinearInput {
  LinearInput() = default;
  LinearInput(TensorView whole) : rows(whole) {}
  LinearInput(TensorView scaled, RowSquares lacking) : rows(scaled), squares(lacking) {}
  TensorView rows;
  RowSquares squares;
};

class LayerNorm;

// y = activation(x W^T + b) + residual. Homes: NAME.weight [num_outputs, num_inputs], NAME.bias [num_outputs]. Fused
// homes whose parts are in blocks of different formats are computed part by part.
//
// A cut of rows leaves this rank some of the outputs. A cut of columns leaves it some of the inputs: then every product
// is followed by the sum over the ranks, in which rank 0 alone brings bias and residual, and there is no activation.
class Linear {
 public:
  // num_outputs and num_inputs are those of the whole.
  static Result<Linear> load(const LoadContext& context, const std::string& name, int num_outputs, int num_inputs,
                             bool has_bias = true, const weights::Cut& cut = {});
  // From arrays that are there already: weight [num_outputs, num_inputs] on the host, bias [num_outputs] or none.
  static Result<Linear> pack(Device& device, TensorView weight, Tensor bias, DType storage);
  // So that run() takes rows which lack `norm`; once, where rows may be passed through it (ops/linear/passed_norm.h).
  // Costs 8 bytes an output. Errors: internal (a layer of several parts).
  Status fold(Device& device, const LayerNorm& norm);
  bool is_folded() const { return static_cast<bool>(folded_); }
  // Whether its outputs are sums over the ranks.
  bool sums_over_ranks() const { return sums_over_ranks_; }
  // x [M, num_inputs] f32, out [M, num_outputs] f32. Thread: the step's owner.
  Status run(OpContext& ops, const LinearInput& x, TensorView out, Activation activation = Activation::none,
             TensorView residual = {}) const;
  // stream += x W^T + b, and what the norm behind it wants, if anything.
  Status add(OpContext& ops, TensorView x, TensorView stream, const PassedNorm& passed = {}) const;
  // For add(): in how many parts it would leave squares for `reader`, whose outputs are `reader_out`; 0 where a norm
  // must stand between them.
  std::int64_t passed_norm_parts(const OpContext& ops, TensorView x, TensorView stream, const Linear& reader,
                                 bool reader_is_gated, DType reader_out) const;
  // x W^T alone, for an op behind it that adds bias().
  Status multiply(OpContext& ops, TensorView x, TensorView out) const;
  TensorView bias() const { return bias_ ? bias_.view() : TensorView(); }  // [num_outputs] f32
  std::size_t workspace_bytes(std::int64_t num_rows, int num_threads) const;
  // out [M, num_outputs / 2] = silu(gate) * up, the outputs being those of gate and then those of up. No bias.
  Status run_gated(OpContext& ops, const LinearInput& x, TensorView out) const;
  std::size_t gated_workspace_bytes(std::int64_t num_rows, int num_threads) const;
  // Of a layer of one part, for tied embeddings.
  const LinearWeight& weight() const {
    MSTAR_CHECK(parts_.size() == 1);
    return parts_[0];
  }
  std::size_t bytes() const;

 private:
  Status run_parts(OpContext& ops, const LinearArgs& whole) const;

  Status run_parts_of_rank(OpContext& ops, const LinearArgs& whole) const;

  std::vector<LinearWeight> parts_;  // by outputs
  bool sums_over_ranks_ = false;
  Tensor bias_;
  Tensor folded_;  // [2, num_outputs] f32: W times the gains of a norm, and W times its bias plus b
};

// Homes: NAME.weight [dim], NAME.bias [dim].
class LayerNorm {
 public:
  static Result<LayerNorm> load(const LoadContext& context, const std::string& name, int dim, float epsilon = 1e-5f);
  Status run(OpContext& ops, TensorView x, TensorView out) const;
  TensorView weight() const { return weight_.view(); }
  TensorView bias() const { return bias_.view(); }
  float epsilon() const { return epsilon_; }
  std::size_t bytes() const { return weight_.bytes() + bias_.bytes(); }

 private:
  Tensor weight_, bias_;
  float epsilon_ = 1e-5f;
};

// A home, or a part of it, as one f32 tensor; `shape` is that of the whole.
Result<Tensor> load_f32(const LoadContext& context, const std::string& home, const Shape& shape,
                        const weights::Cut& cut = {});

}  // namespace mstar::nn
