// Regions of a component's forward: their graphs, and where what crosses their borders lies. Host data alone.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "mstar/device/device.h"
#include "mstar/engine/component_body.h"
#include "mstar/engine/lease.h"

namespace mstar::engine {

// What was recorded for one bucket, for each plan slot.
struct Graphs {
  std::array<std::unique_ptr<CapturedGraph>, resource::kNumSlots> by_slot;
};

struct Region {
  RegionSpec spec;
  const decl::PiecewiseRegion* sizes = nullptr;  // null: never captured
  BucketTable buckets = BucketTable();           // Bucket::spec is the kind
  std::vector<Graphs> graphs = {};               // by bucket
  // What graphs count by segments is padded up to so many.
  int num_segments(const Bucket& bucket) const { return bucket.rows * sizes->max_segments_per_request; }
};

// Each border has room for the largest step, so that it lies at one place in steps of all sizes.
class Borders {
 public:
  Borders() = default;
  Borders(std::vector<SlotSpec> specs, const resource::PoolLimits& limits);
  std::size_t bytes() const { return bytes_; }
  // In memory of bytes(): of a step with so many rows and tokens.
  TensorView view(int index, std::byte* memory, int rows, int tokens, DeviceId device) const;

 private:
  std::vector<SlotSpec> specs_;
  std::vector<std::size_t> offsets_;
  std::size_t bytes_ = 0;
};

}  // namespace mstar::engine
