#include "mstar/nn/linear.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "mstar/ops/collectives/collectives.h"
#include "mstar/ops/columns.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/linear/fold_norm.h"
#include "mstar/ops/linear/gated_linear.h"

namespace mstar::nn {

Result<Tensor> load_f32(const LoadContext& context, const std::string& home, const Shape& shape,
                        const weights::Cut& cut) {
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded, context.weights.take(home, shape, cut));
  auto out = loaded.to_tensor(context.device, DType::f32);
  context.weights.release_pages(loaded);
  return out;
}

Result<Linear> Linear::load(const LoadContext& context, const std::string& name, int num_outputs, int num_inputs,
                            bool has_bias, const weights::Cut& cut) {
  Linear out;
  out.sums_over_ranks_ = !cut.is_whole() && cut.axis == 1;
  MSTAR_TRY_ASSIGN(const weights::LoadedWeight loaded,
                   context.weights.take(name + ".weight", {num_outputs, num_inputs}, cut));
  const weights::AlignedParts aligned = loaded.aligned();
  context.weights.release_pages(loaded);  // what was copied is read from the copy
  const bool keeps = context.keep_blocks && context.device.id().backend == Backend::cpu;
  std::vector<LinearSource> sources;
  std::optional<StoredType> storage;
  const auto pack = [&]() -> Status {
    if (sources.empty()) return ok_status();
    MSTAR_TRY_ASSIGN(LinearWeight weight, LinearWeight::pack(context.device, sources, *storage, context.pool));
    if (context.batch_invariant) weight.keep_one_order();
    out.parts_.push_back(std::move(weight));
    sources.clear();
    return ok_status();
  };
  for (const auto& part : aligned.parts()) {
    const StoredType own = keeps && part.blocks ? StoredType(*part.blocks) : StoredType(context.storage);
    if (storage && *storage != own) MSTAR_TRY(pack());
    storage = own;
    sources.push_back({part.weight, part.row_scale, part.blocks});
  }
  MSTAR_TRY(pack());
  context.weights.release_pages(loaded);
  if (has_bias) {
    const weights::Cut of_bias = out.sums_over_ranks_ ? weights::Cut{} : cut;
    MSTAR_TRY_ASSIGN(Tensor bias, load_f32(context, name + ".bias", {num_outputs}, of_bias));
    if (!out.sums_over_ranks_ || context.ranks.rank == 0) out.bias_ = std::move(bias);
  }
  return out;
}

Result<Linear> Linear::pack(Device& device, TensorView weight, Tensor bias, DType storage) {
  Linear out;
  MSTAR_TRY_ASSIGN(LinearWeight packed, LinearWeight::pack(device, LinearSource{.weight = weight}, storage));
  out.parts_.push_back(std::move(packed));
  out.bias_ = std::move(bias);
  return out;
}

Status Linear::fold(Device& device, const LayerNorm& norm) {
  if (parts_.size() != 1) return internal_error("a norm is folded into a layer of several parts");
  MSTAR_TRY_ASSIGN(folded_, Tensor::allocate(device, DType::f32, {2, parts_[0].num_outputs()}));
  Arena none;
  OpContext ops{.device = device, .stream = device.default_stream(), .arena = none};
  return fold_norm(ops, {.weight = &parts_[0],
                         .gains = norm.weight(),
                         .shifts = norm.bias(),
                         .bias = bias(),
                         .weighted_gains = folded_.view().at(0),
                         .folded_bias = folded_.view().at(1)});
}

Status Linear::run(OpContext& ops, const LinearInput& x, TensorView out, Activation activation,
                   TensorView residual) const {
  LinearArgs args;
  args.x = x.rows;
  args.bias = bias();
  args.residual = residual;
  args.activation = activation;
  args.out = out;
  args.squares = x.squares;
  if (x.squares.sums.pointer) {
    if (!folded_) return internal_error("rows lack a layer norm that was not folded");
    args.squares.weighted_gains = folded_.view().at(0);
    args.bias = folded_.view().at(1);
  }
  return run_parts(ops, args);
}

Status Linear::add(OpContext& ops, TensorView x, TensorView stream, const PassedNorm& passed) const {
  LinearArgs args;
  args.x = x;
  args.bias = bias();
  args.residual = args.out = stream;
  args.passed = passed;
  return run_parts(ops, args);
}

Status Linear::multiply(OpContext& ops, TensorView x, TensorView out) const {
  LinearArgs args;
  args.x = x;
  args.out = out;
  return run_parts(ops, args);
}

std::int64_t Linear::passed_norm_parts(const OpContext& ops, TensorView x, TensorView stream, const Linear& reader,
                                       bool reader_is_gated, DType reader_out) const {
  if (parts_.size() != 1 || reader.parts_.size() != 1 || sums_over_ranks_) return 0;
  LinearArgs args;
  args.x = x;
  args.weight = &parts_[0];
  args.residual = args.out = stream;
  return ::mstar::passed_norm_parts(ops, args,
                                    {.weight = &reader.parts_[0], .out = reader_out, .gated = reader_is_gated});
}

Status Linear::run_parts(OpContext& ops, const LinearArgs& whole) const {
  if (!sums_over_ranks_) return run_parts_of_rank(ops, whole);
  if (!ops.communicator || whole.activation != Activation::none)
    return internal_error("a layer cut by its inputs runs without the other ranks, or with an activation");
  LinearArgs own = whole;
  if (ops.communicator->rank() != 0) own.residual = {};
  MSTAR_TRY(run_parts_of_rank(ops, own));
  return all_reduce(ops, whole.out);
}

Status Linear::run_parts_of_rank(OpContext& ops, const LinearArgs& whole) const {
  if (parts_.empty()) return internal_error("a linear layer has no weight");
  std::int64_t begin = 0;
  for (const LinearWeight& part : parts_) {
    LinearArgs args = whole;
    args.weight = &part;
    if (parts_.size() > 1) {
      args.bias = columns(whole.bias, begin, part.num_outputs());
      args.residual = columns(whole.residual, begin, part.num_outputs());
      args.out = columns(whole.out, begin, part.num_outputs());
    }
    MSTAR_TRY(linear(ops, args));
    begin += part.num_outputs();
  }
  return ok_status();
}

std::size_t Linear::workspace_bytes(std::int64_t num_rows, int num_threads) const {
  std::size_t most = 0;
  for (const LinearWeight& part : parts_) most = std::max(most, linear_workspace_bytes(part, num_rows, num_threads));
  return most;
}

Status Linear::run_gated(OpContext& ops, const LinearInput& x, TensorView out) const {
  if (bias_) return internal_error("a gated layer has a bias");
  if (parts_.size() == 1)
    return gated_linear(ops, {.x = x.rows, .weight = &parts_[0], .out = out, .squares = x.squares});
  const std::size_t mark = ops.arena.mark();
  const std::int64_t half = out.dim(1);
  const TensorView both = ops.temporary(out.dtype, {x.rows.dim(0), 2 * half});
  MSTAR_TRY(run(ops, x, both));
  MSTAR_TRY(silu_mul(ops, {.gate = columns(both, 0, half), .up = columns(both, half, half), .out = out}));
  ops.arena.rewind(mark);
  return ok_status();
}

std::size_t Linear::gated_workspace_bytes(std::int64_t num_rows, int num_threads) const {
  std::int64_t num_outputs = 0;
  for (const LinearWeight& part : parts_) num_outputs += part.num_outputs();
  return static_cast<std::size_t>(num_rows * num_outputs) * sizeof(float) + 256 +
         workspace_bytes(num_rows, num_threads);
}

std::size_t Linear::bytes() const {
  std::size_t out = bias_.bytes() + folded_.bytes();
  for (const LinearWeight& part : parts_) out += part.bytes();
  return out;
}

Result<LayerNorm> LayerNorm::load(const LoadContext& context, const std::string& name, int dim, float epsilon) {
  LayerNorm out;
  out.epsilon_ = epsilon;
  MSTAR_TRY_ASSIGN(out.weight_, load_f32(context, name + ".weight", {dim}));
  MSTAR_TRY_ASSIGN(out.bias_, load_f32(context, name + ".bias", {dim}));
  return out;
}

Status LayerNorm::run(OpContext& ops, TensorView x, TensorView out) const {
  return layer_norm(ops, {.x = x, .weight = weight_.view(), .bias = bias_.view(), .epsilon = epsilon_, .out = out});
}

}  // namespace mstar::nn
