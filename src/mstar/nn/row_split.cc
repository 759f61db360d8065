#include "mstar/nn/row_split.h"

#include <algorithm>
#include <vector>

#include "mstar/ops/collectives/collectives.h"

namespace mstar::nn {

RowSplit::RowSplit(std::int64_t num_rows, Ranks sequence) : sequence_(sequence), num_rows_(num_rows) {
  // From size x size rows on, the last part of ceil(rows / size) each is not empty.
  const std::int64_t fewest = sequence.size * std::max<std::int64_t>(kFewestRows, sequence.size);
  is_split_ = !sequence.alone() && num_rows >= fewest;
  per_rank_ = is_split_ ? (num_rows + sequence.size - 1) / sequence.size : num_rows;
}

AxisRange RowSplit::own() const {
  if (!is_split_) return {0, num_rows_};
  return {sequence_.rank * per_rank_, std::min(num_rows_, (sequence_.rank + 1) * per_rank_)};
}

std::int64_t RowSplit::most_padded_rows(std::int64_t num_rows, Ranks sequence) {
  return sequence.alone() ? num_rows : num_rows + sequence.size - 1;
}

Status gather_rows(OpContext& ops, const RowSplit& split, TensorView rows) {
  if (!split.is_split()) return ok_status();
  std::vector<std::int64_t> dims = {split.padded_rows() / split.per_rank(), split.per_rank()};
  for (int axis = 1; axis < rows.shape.rank(); ++axis) dims.push_back(rows.dim(axis));
  return gather_parts(ops, rows.reshaped(Shape(dims)));
}

}  // namespace mstar::nn
