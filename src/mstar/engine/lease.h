// Which captured graph a step takes, and which of the two plan slots. Pure host logic.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mstar/decl/component.h"
#include "mstar/decl/refs.h"
#include "mstar/resource/resource.h"

namespace mstar::engine {

// A size for which a graph was captured, or what a step needs of one. The walk is none where rows of any walk may come.
struct Bucket {
  decl::WalkRef walk;
  int rows = 0;
  int tokens = 0;
  std::uint64_t shape_key = 0;
  int spec = 0;  // which of the component's captures
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

// The captured buckets of one component.
class BucketTable {
 public:
  // In any order. Each is known by its place in the list.
  explicit BucketTable(std::vector<Bucket> buckets = {}) : buckets_(std::move(buckets)) {}
  // The smallest bucket (fewest tokens, then fewest rows) that holds the step; nothing when none does: it runs eagerly.
  std::optional<int> find(const Bucket& need) const;
  const Bucket& at(int index) const { return buckets_[static_cast<std::size_t>(index)]; }
  int size() const { return static_cast<int>(buckets_.size()); }

 private:
  std::vector<Bucket> buckets_;
};

// The two plan slots of one component: a step is prepared in one while the step before it runs from the other. A step
// takes its slot before it plans and holds it until it has finished.
class PlanSlots {
 public:
  // The free slot that has rested longer; nothing while both are in flight.
  std::optional<int> take();
  void give_back(int slot);
  int num_taken() const { return static_cast<int>(taken_[0]) + static_cast<int>(taken_[1]); }

 private:
  static_assert(resource::kNumSlots == 2);
  std::array<bool, 2> taken_ = {};
  int next_ = 0;
};

// The captured sizes of one piecewise region (Decl::validate has refused what means nothing).
class RegionTable {
 public:
  explicit RegionTable(const decl::PiecewiseRegion& region) : region_(region) {}
  struct Lease {
    int rows = 0;    // of the captured graph
    int tokens = 0;  // 0 in a batched region
    friend bool operator==(const Lease&, const Lease&) = default;
  };
  // `tokens` and `segments` of each row. A region with `one_row_per_step` takes the whole step as one row, so that all
  // segments count against that row's max_segments_per_request. Nothing: the region runs eagerly.
  std::optional<Lease> find(std::span<const int> tokens, std::span<const int> segments) const;

 private:
  decl::PiecewiseRegion region_;
};

}  // namespace mstar::engine
