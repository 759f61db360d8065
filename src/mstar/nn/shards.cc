#include "mstar/nn/shards.h"

#include <string>

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

}  // namespace mstar::nn
