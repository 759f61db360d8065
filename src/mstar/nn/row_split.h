// Which rows of a step a rank has where ranks split sequences.
#pragma once

#include <cstdint>

#include "mstar/base/shares.h"
#include "mstar/ops/op_context.h"

namespace mstar::nn {

// Rank r has rows [r * per_rank, (r + 1) * per_rank) of those that there are, each rank at least one; or, of few rows,
// every rank has all: a product reads its weights for one row as for eight, and exchanges take their time too. Pure:
// all ranks find the same.
class RowSplit {
 public:
  static constexpr std::int64_t kFewestRows = 8;  // of a rank

  RowSplit(std::int64_t num_rows, Ranks sequence);
  bool is_split() const { return is_split_; }
  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t per_rank() const { return per_rank_; }
  // With as many rows of each rank, so that parts are alike: those past num_rows() are nobody's.
  std::int64_t padded_rows() const { return is_split_ ? per_rank_ * sequence_.size : num_rows_; }
  AxisRange own() const;
  // Most of padded_rows() for up to so many rows.
  static std::int64_t most_padded_rows(std::int64_t num_rows, Ranks sequence);

 private:
  Ranks sequence_;
  std::int64_t num_rows_ = 0;
  std::int64_t per_rank_ = 0;
  bool is_split_ = false;
};

// `rows` [padded_rows(), ...], contiguous, has the own rows; afterwards all. Nothing happens where they are not split.
Status gather_rows(OpContext& ops, const RowSplit& split, TensorView rows);

}  // namespace mstar::nn
