// What a rank holds of a block's heads and widths, with messages for those that do not divide.
#pragma once

#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/base/shares.h"
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

}  // namespace mstar::nn
