// How equal units (heads, columns) are shared out among the ranks of a group.
#pragma once

#include <cstdint>
#include <optional>

namespace mstar {

// Half open, of rows or columns.
struct AxisRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  AxisRange scaled(std::int64_t unit) const { return {begin * unit, end * unit}; }
  AxisRange shifted(std::int64_t by) const { return {begin + by, end + by}; }
  friend bool operator==(const AxisRange&, const AxisRange&) = default;
};

// A rank's place in a group that works in step. The default is alone.
struct Ranks {
  int rank = 0;
  int size = 1;
  bool alone() const { return size == 1; }
};

// The ranks of a group that works in step: `sequence` times as many as hold parts of weights, row-major
// [sequence][tensor].
struct MeshSize {
  int tensor = 1;    // that each hold a part of the weights
  int sequence = 1;  // that each have a part of the rows
  int num_ranks() const { return tensor * sequence; }
  friend bool operator==(const MeshSize&, const MeshSize&) = default;
};

// As many for each rank, in order; nothing when they do not divide.
inline std::optional<AxisRange> even_share(std::int64_t units, Ranks ranks) {
  if (units % ranks.size != 0) return std::nullopt;
  const std::int64_t each = units / ranks.size;
  return AxisRange{ranks.rank * each, (ranks.rank + 1) * each};
}

// The same; and fewer units than ranks are each held by as many neighbouring ranks, where those divide.
inline std::optional<AxisRange> shared_share(std::int64_t units, Ranks ranks) {
  if (units <= 0 || units >= ranks.size || ranks.size % units != 0) return even_share(units, ranks);
  const std::int64_t own = ranks.rank / (ranks.size / units);
  return AxisRange{own, own + 1};
}

// Of an axis that need not divide: as many for each rank but the last ones, which may have fewer or none.
inline AxisRange uneven_share(std::int64_t units, Ranks ranks) {
  const std::int64_t each = (units + ranks.size - 1) / ranks.size;
  const std::int64_t begin = each * ranks.rank < units ? each * ranks.rank : units;
  return {begin, begin + each < units ? begin + each : units};
}

}  // namespace mstar
