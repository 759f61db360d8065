#include "mstar/nn/head_swap.h"

#include <utility>

#include "mstar/base/check.h"
#include "mstar/ops/collectives/collectives.h"
#include "mstar/ops/pick_columns/pick_columns.h"

namespace mstar::nn {

HeadSwap::HeadSwap(Ranks sequence, std::vector<std::vector<AxisRange>> in, std::vector<std::vector<AxisRange>> out)
    : sequence_(sequence), in_(std::move(in)), out_(std::move(out)) {
  if (alone()) return;
  MSTAR_CHECK(std::ssize(in_) == sequence.size && std::ssize(out_) == sequence.size, "a swap knows each rank's heads");
  for (const auto& each : in_) MSTAR_CHECK(count(each) == count(in_[0]), "ranks swap unlike parts");
  for (const auto& each : out_) MSTAR_CHECK(count(each) == count(out_[0]), "ranks swap unlike parts");
}

std::int64_t HeadSwap::count(const std::vector<AxisRange>& ranges) {
  std::int64_t out = 0;
  for (const AxisRange& each : ranges) out += each.count();
  return out;
}

Result<TensorView> HeadSwap::to_heads(OpContext& ops, TensorView projection, std::int64_t num_rows) const {
  if (alone()) return projection;
  const RowSplit split(num_rows, sequence_);
  const std::int64_t width = count(in_[0]), own_rows = projection.dim(0);
  if (!split.is_split()) {
    const TensorView own = ops.temporary(projection.dtype, {num_rows, width});
    MSTAR_TRY(pick_columns(
        ops, {.rows = projection, .ranges = in_[static_cast<std::size_t>(sequence_.rank)], .packed = own}));
    return own;
  }
  const Shape parts{sequence_.size, split.per_rank(), width};
  const TensorView sent = ops.temporary(projection.dtype, parts), received = ops.temporary(projection.dtype, parts);
  for (int rank = 0; rank < sequence_.size; ++rank)
    MSTAR_TRY(pick_columns(ops, {.rows = projection,
                                 .ranges = in_[static_cast<std::size_t>(rank)],
                                 .packed = sent.at(rank).slice(0, own_rows)}));
  MSTAR_TRY(exchange_parts(ops, sent, received));
  // Part r has the rows of rank r: so they lie in their order.
  return received.reshaped({split.padded_rows(), width}).slice(0, num_rows);
}

TensorView HeadSwap::room(OpContext& ops, std::int64_t num_rows, std::int64_t whole_width) const {
  const std::int64_t width = alone() ? whole_width : count(out_[0]);
  const RowSplit split(num_rows, sequence_);
  return ops.temporary(ops.activations, {split.padded_rows(), width}).slice(0, num_rows);
}

Result<TensorView> HeadSwap::to_rows(OpContext& ops, TensorView mixed, std::int64_t whole_width) const {
  if (alone()) return mixed;
  const RowSplit split(mixed.dim(0), sequence_);
  const std::int64_t width = mixed.dim(1), own_rows = split.own().count();
  const Shape parts{sequence_.size, split.per_rank(), width};
  const TensorView all = ops.temporary(mixed.dtype, parts);  // rank r's heads of the own rows in part r
  if (split.is_split()) {
    TensorView sent = mixed;
    sent.shape = parts;
    sent.strides = all.strides;
    MSTAR_TRY(exchange_parts(ops, sent, all));
  } else {
    const TensorView own = all.at(sequence_.rank);
    ops.device.copy_within(own.pointer, mixed.pointer, own.bytes(), ops.stream);
    MSTAR_TRY(gather_parts(ops, all));
  }
  const TensorView out = ops.temporary(mixed.dtype, {own_rows, whole_width});
  for (int rank = 0; rank < sequence_.size; ++rank)
    MSTAR_TRY(pick_columns(ops, {.rows = out,
                                 .ranges = out_[static_cast<std::size_t>(rank)],
                                 .packed = all.at(rank).slice(0, own_rows),
                                 .puts_back = true}));
  return out;
}

std::size_t HeadSwap::workspace_bytes(std::int64_t num_rows, std::int64_t whole_width) const {
  if (alone()) return 0;
  const std::int64_t rows = RowSplit::most_padded_rows(num_rows, sequence_);
  // Of few rows the gathered parts are of all of them: size x count is the whole.
  const std::int64_t numbers =
      2 * rows * count(in_[0]) + rows * count(out_[0]) * (1 + sequence_.size) + rows * whole_width;
  return static_cast<std::size_t>(numbers) * sizeof(float) + 6 * 256;
}

}  // namespace mstar::nn
