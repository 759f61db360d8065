// Sums over the arrays of a group's ranks, in the order of the ranks: the same bits wherever the arrays lie.
#pragma once

#include <cstddef>
#include <span>

#include "mstar/base/dtype.h"

namespace mstar {

// f32, bf16 and f16.
bool can_sum(DType dtype);

// Elements [begin, end): each of `to` becomes ((from[0] + from[1]) + ...), made in f32 and of 16-bit numbers rounded
// once. The arrays of `to` may be those of `from`; else they don't overlap. Thread: any.
void sum_in_rank_order(std::span<const std::byte* const> from, std::span<std::byte* const> to, std::size_t begin,
                       std::size_t end, DType dtype);

// Elements of an array of `count` that are for one of the ranks to sum: whole cache lines, all of them together.
struct SumShare {
  std::size_t begin = 0, end = 0;
};
SumShare share_of(std::size_t count, int rank, int size);

}  // namespace mstar
