#include "mstar/nn/shards.h"

#include <string>
#include <utility>

namespace mstar::nn {
namespace {

Error does_not_divide(std::string_view what, std::int64_t count, Ranks ranks) {
  return bad_model(std::to_string(count) + " " + std::string(what) + " do not divide over " +
                   std::to_string(ranks.size) + " ranks");
}

}  // namespace

Result<AxisRange> own_share(std::string_view what, std::int64_t count, Ranks ranks) {
  if (const auto share = even_share(count, ranks); share && share->count() > 0) return *share;
  return does_not_divide(what, count, ranks);
}

Result<AxisRange> own_kv_heads(std::int64_t count, Ranks ranks) {
  if (const auto share = shared_share(count, ranks); share && share->count() > 0) return *share;
  return does_not_divide("key heads", count, ranks);
}

Result<SharedHeads> share_heads(int heads, int kv_heads, Ranks sequence) {
  SharedHeads out;
  for (int rank = 0; rank < sequence.size; ++rank) {
    MSTAR_TRY_ASSIGN(const AxisRange own, own_share("query heads", heads, {rank, sequence.size}));
    MSTAR_TRY_ASSIGN(const AxisRange own_kv, own_kv_heads(kv_heads, {rank, sequence.size}));
    out.heads.push_back(own);
    out.kv_heads.push_back(own_kv);
  }
  out.num_heads = static_cast<int>(out.heads[0].count());
  out.num_kv_heads = static_cast<int>(out.kv_heads[0].count());
  return out;
}

HeadSwap swap_of_heads(const SharedHeads& shared, const ProjectedHeads& projected, int head_dim, Ranks sequence) {
  if (sequence.alone()) return {};
  std::vector<std::vector<AxisRange>> in, out;
  for (std::size_t rank = 0; rank < shared.heads.size(); ++rank) {
    const AxisRange keys = shared.kv_heads[rank].scaled(head_dim).shifted(projected.kv_begin);
    in.push_back({shared.heads[rank].scaled(projected.unit), keys, keys.shifted(projected.kv_width)});
    out.push_back({shared.heads[rank].scaled(head_dim)});
  }
  return HeadSwap(sequence, std::move(in), std::move(out));
}

}  // namespace mstar::nn
