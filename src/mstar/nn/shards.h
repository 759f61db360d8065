// What a rank holds of a block's heads and widths, with messages for those that do not divide.
#pragma once

#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/base/shares.h"
#include "mstar/nn/head_swap.h"
#include "mstar/weights/loaded_weight.h"

namespace mstar::nn {

// An even share of `count`; bad_model, naming what does not divide ("9 query heads"). Alone: all.
Result<AxisRange> own_share(std::string_view what, std::int64_t count, Ranks ranks);
// The same; fewer key heads than ranks are each held by several, whose query heads read it.
Result<AxisRange> own_kv_heads(std::int64_t count, Ranks ranks);
// The whole where there is one rank.
inline weights::Cut rows_cut(Ranks ranks, std::vector<AxisRange> ranges) {
  return ranks.alone() ? weights::Cut{} : weights::Cut{0, std::move(ranges)};
}
inline weights::Cut columns_cut(Ranks ranks, std::vector<AxisRange> ranges) {
  return ranks.alone() ? weights::Cut{} : weights::Cut{1, std::move(ranges)};
}

// The heads of a rank's weights, shared out once more over the ranks that split sequences.
struct SharedHeads {
  std::vector<AxisRange> heads, kv_heads;  // by rank
  int num_heads = 0, num_kv_heads = 0;     // of each
};
// bad_model, naming what does not divide.
Result<SharedHeads> share_heads(int heads, int kv_heads, Ranks sequence);
// Where they lie in a projection: queries (and what goes with each), `unit` wide, then keys, then values.
struct ProjectedHeads {
  int unit = 0;
  int kv_begin = 0;  // the first column of keys
  int kv_width = 0;  // of all keys
};
// Of a layer whose mixed heads are `head_dim` wide and lie in their order.
HeadSwap swap_of_heads(const SharedHeads& shared, const ProjectedHeads& projected, int head_dim, Ranks sequence);

}  // namespace mstar::nn
