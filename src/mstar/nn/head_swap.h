// Rows for heads and back: a rank that has some rows of all heads gets all rows of some heads, attends, and swaps back.
#pragma once

#include <vector>

#include "mstar/nn/row_split.h"

namespace mstar::nn {

// Of a layer whose projection has columns of every head, and whose mixed heads go into another product. Each rank that
// splits sequences has as many columns of both. Alone nothing is done: views come back as they are.
// Source: DeepSpeed-Ulysses (arXiv 2309.14509). Thread: the step's owner.
class HeadSwap {
 public:
  HeadSwap() = default;
  // By rank: its columns of the projection, in the order in which it reads them; its columns of the mixed heads.
  HeadSwap(Ranks sequence, std::vector<std::vector<AxisRange>> in, std::vector<std::vector<AxisRange>> out);

  bool alone() const { return sequence_.alone(); }
  // projection [own rows, all columns] -> [num_rows, own columns], of the arena. Of split rows an exchange of num_rows
  // x own columns; else a choice of columns.
  Result<TensorView> to_heads(OpContext& ops, TensorView projection, std::int64_t num_rows) const;
  // Room for the mixed heads [num_rows, own columns of `whole_width`], of the arena, which to_rows() takes.
  TensorView room(OpContext& ops, std::int64_t num_rows, std::int64_t whole_width) const;
  // mixed from room() -> [own rows, whole_width], of the arena.
  Result<TensorView> to_rows(OpContext& ops, TensorView mixed, std::int64_t whole_width) const;
  // Arena bytes that these take beside room(), in elements of four bytes.
  std::size_t workspace_bytes(std::int64_t num_rows, std::int64_t whole_width) const;

 private:
  static std::int64_t count(const std::vector<AxisRange>& ranges);

  Ranks sequence_;
  std::vector<std::vector<AxisRange>> in_, out_;  // by rank
};

}  // namespace mstar::nn
