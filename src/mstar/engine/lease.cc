#include "mstar/engine/lease.h"

#include <algorithm>
#include <numeric>

#include "mstar/base/check.h"

namespace mstar::engine {

std::optional<int> BucketTable::find(const Bucket& need) const {
  std::optional<int> best;
  for (int i = 0; i < size(); ++i) {
    const Bucket& bucket = at(i);
    if (bucket.walk.valid() && bucket.walk != need.walk) continue;
    if (bucket.spec != need.spec || bucket.shape_key != need.shape_key) continue;
    if (bucket.rows < need.rows || bucket.tokens < need.tokens) continue;
    const auto size_of = [](const Bucket& b) { return std::pair(b.tokens, b.rows); };
    if (!best || size_of(bucket) < size_of(at(*best))) best = i;
  }
  return best;
}

std::optional<int> PlanSlots::take() {
  for (int i = 0; i < 2; ++i) {
    const int slot = (next_ + i) % 2;
    if (taken_[static_cast<std::size_t>(slot)]) continue;
    taken_[static_cast<std::size_t>(slot)] = true;
    next_ = 1 - slot;
    return slot;
  }
  return std::nullopt;
}

void PlanSlots::give_back(int slot) {
  MSTAR_CHECK(slot >= 0 && slot < 2 && taken_[static_cast<std::size_t>(slot)], "a plan slot came back that was free");
  taken_[static_cast<std::size_t>(slot)] = false;
}

namespace {

// The smallest of `sizes` that is at least `need`; 0 when there is none.
int smallest_at_least(const std::vector<int>& sizes, int need) {
  int best = 0;
  for (const int size : sizes)
    if (size >= need && (best == 0 || size < best)) best = size;
  return best;
}

}  // namespace

std::optional<RegionTable::Lease> RegionTable::find(std::span<const int> tokens, std::span<const int> segments) const {
  if (tokens.empty() || tokens.size() != segments.size()) return std::nullopt;
  const int total_tokens = std::accumulate(tokens.begin(), tokens.end(), 0);
  const int total_segments = std::accumulate(segments.begin(), segments.end(), 0);
  const int most_segments =
      region_.one_row_per_step ? total_segments : *std::max_element(segments.begin(), segments.end());
  if (most_segments > region_.max_segments_per_request) return std::nullopt;
  const int num_rows = region_.one_row_per_step ? 1 : static_cast<int>(tokens.size());
  const Lease lease{smallest_at_least(region_.rows, num_rows),
                    region_.tokens.empty() ? 0 : smallest_at_least(region_.tokens, total_tokens)};
  if (lease.rows == 0 || (lease.tokens == 0 && !region_.tokens.empty())) return std::nullopt;
  return lease;
}

}  // namespace mstar::engine
