// Regions: where their borders lie, which graphs a step leases, how they are recorded and replayed.
#include "mstar/engine/regions.h"

#include <algorithm>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/base/load_progress.h"
#include "mstar/base/log.h"
#include "mstar/engine/engine.h"
#include "mstar/engine/step.h"

namespace mstar::engine {

Borders::Borders(std::vector<SlotSpec> specs, const resource::PoolLimits& limits) : specs_(std::move(specs)) {
  for (const SlotSpec& spec : specs_) {
    offsets_.push_back(bytes_);
    const auto items = static_cast<std::size_t>(spec.per_token ? limits.max_tokens : limits.max_rows);
    bytes_ += (items * item_bytes(spec) + 255) & ~std::size_t{255};
  }
}

TensorView Borders::view(int index, std::byte* memory, int rows, int tokens, DeviceId device) const {
  const auto at = static_cast<std::size_t>(index);
  return slot_view(specs_[at], memory + offsets_[at], specs_[at].per_token ? tokens : rows, device);
}

Status Step::run_region(int region, const std::function<Status()>& part) {
  MSTAR_CHECK(region >= 0 && region < static_cast<int>(regions.size()), "a forward runs a region that its body lacks");
  // Nothing may rely on what it would not find where the region is a graph: its memory is that of the graph's step.
  arena.reset();
  Status ran;
  if (CapturedGraph* const graph = regions[static_cast<std::size_t>(region)]) {
    ++num_region_replays;
    ran = graph->launch(context_.stream);
  } else {
    ran = region == recorded_region ? record_region(part) : part();
  }
  arena.reset();
  return ran;
}

Status Step::record_region(const std::function<Status()>& part) {
  context_.device.synchronize(context_.stream);
  note_load_progress();
  MSTAR_TRY(context_.device.begin_capture(context_.stream));
  const Status ran = part();
  auto graph = context_.device.end_capture(context_.stream);
  if (!ran) return ran.error();
  if (!graph) return graph.error();
  recorded = std::move(*graph);
  return recorded->launch(context_.stream);  // the forward goes on from its results
}

Status Engine::find_regions() {
  borders_ = Borders(body_->borders(), options_.limits);
  for (RegionSpec& spec : body_->regions()) regions_.push_back({.spec = std::move(spec)});
  for (const decl::PiecewiseRegion& sizes : spec_.capture.regions) {
    const auto found = std::find_if(regions_.begin(), regions_.end(),
                                    [&](const Region& each) { return each.spec.name == sizes.name; });
    if (found == regions_.end())
      return bad_model("component '" + spec_.name + "' has no region '" + sizes.name + "' that could be captured");
    found->sizes = &sizes;
  }
  return ok_status();
}

namespace {

// Whether a row brings into each slot without an item a token what so many segments of the kind do.
bool same_sources(const RowDemand& row, const RowDemand& kind, const std::vector<SlotSpec>& slots) {
  std::vector<std::int64_t> items(slots.size());
  for (const SlotSource& each : row.sources) items[static_cast<std::size_t>(each.slot)] += each.items;
  for (const SlotSource& each : kind.sources) items[static_cast<std::size_t>(each.slot)] -= each.items * row.segments;
  for (std::size_t s = 0; s < slots.size(); ++s)
    if (items[s] != 0 && !slots[s].per_token) return false;
  return true;
}

}  // namespace

bool Engine::fits(const Step& step, const Region& region, const CaptureSpec& kind) const {
  const bool one_row = region.sizes->one_row_per_step;
  if (kind.packed && !one_row && step.rows.num_tokens() <= step.num_rows()) return false;
  for (int r = 0; region.sizes->lease_before_step && r < step.num_rows(); ++r) {
    const RowDemand& demand = step.demand(r);
    if (kind.walk.valid() && kind.walk != step.row(r).walk) return false;
    if (demand.shape_key != kind.row.shape_key) return false;
    if (demand.resources.context_tokens != kind.row.resources.context_tokens) return false;
    if (!same_sources(demand, kind.row, input_slots_)) return false;
    if (kind.packed) continue;
    if (demand.resources.tokens != kind.row.resources.tokens || demand.resources.samples != kind.row.resources.samples)
      return false;
  }
  return true;
}

std::optional<int> Engine::find_graph(const Step& step, const Region& region) const {
  if (region.graphs.empty()) return std::nullopt;
  std::vector<int> tokens, segments;
  for (int r = 0; r < step.num_rows(); ++r) {
    tokens.push_back(step.rows.rows[static_cast<std::size_t>(r)].demand.tokens);
    segments.push_back(step.demand(r).segments);
  }
  for (std::size_t k = 0; k < region.spec.kinds.size(); ++k) {
    const CaptureSpec& kind = region.spec.kinds[k];
    if (!fits(step, region, kind)) continue;
    decl::PiecewiseRegion sizes = *region.sizes;
    if (!kind.packed) sizes.tokens.clear(), sizes.max_segments_per_request = 1;
    const bool counts_segments = kind.packed || sizes.lease_before_step;
    const auto lease = RegionTable(sizes).find(tokens, counts_segments ? segments : std::vector<int>(tokens.size(), 1));
    if (!lease) continue;
    // The smallest of those that were recorded.
    const int rows = sizes.one_row_per_step ? 1 : step.num_rows();
    const int num_tokens = kind.packed ? step.rows.num_tokens() : 0;
    const auto found = region.buckets.find({kind.walk, rows, num_tokens, kind.row.shape_key, static_cast<int>(k)});
    if (found) return found;
  }
  return std::nullopt;
}

void Engine::lease_regions(Step& step) {
  const CaptureSpec* kind = nullptr;  // what pads
  int num_rows = 0, num_segments = 0;
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    const Region& region = regions_[r];
    const std::optional<int> found = find_graph(step, region);
    if (!found) continue;
    const Bucket& bucket = region.buckets.at(*found);
    const CaptureSpec& own = region.spec.kinds[static_cast<std::size_t>(bucket.spec)];
    if (region.sizes->lease_before_step) {
      if (kind && kind->packed != own.packed) continue;  // what pads it would not be what pads the one in front
      kind = &own;
      num_rows = std::max(num_rows, bucket.rows);
      num_segments = std::max(num_segments, own.packed ? region.num_segments(bucket) : bucket.rows);
      step.is_static = true;
      step.rows.packed |= own.packed && !region.sizes->one_row_per_step;
    }
    const Graphs& graphs = region.graphs[static_cast<std::size_t>(*found)];
    step.regions[r] = graphs.by_slot[static_cast<std::size_t>(step.own_slot)].get();
  }
  if (kind) pad(step, *kind, num_rows, num_segments);
}

// Rows that nobody reads any outputs of, and segments that no row has a place for.
void Engine::pad(Step& step, const CaptureSpec& kind, int num_rows, int num_segments) const {
  if (step.rows.packed) step.results_of_places = &kind.row.results;
  for (int r = 0; r < step.num_rows(); ++r) num_segments -= step.demand(r).segments;
  const int num_padding = std::max(0, num_rows - step.num_rows());
  for (int r = 0; r < num_padding; ++r) {
    RowDemand row = of_segments(kind.row, kind.packed ? num_segments / num_padding : 1);
    row.results.clear();
    num_segments -= row.segments;
    step.rows.add({RequestId{}, row.resources});
    step.demands.push_back(std::move(row));
  }
  if (num_segments <= 0) return;
  step.demands.push_back(of_segments(kind.row, num_segments));
  step.demands.back().results.clear();
}

// The forward runs whole, with the region recorded on the way.
Result<std::unique_ptr<CapturedGraph>> Engine::record_region(int index, const Bucket& bucket, int slot) {
  const Region& region = regions_[static_cast<std::size_t>(index)];
  const CaptureSpec& kind = region.spec.kinds[static_cast<std::size_t>(bucket.spec)];
  Step step(device_, step_arena(), options_.pool, resources_, body_->activations(), mesh());
  const Stream stream = step.ops().stream;
  MSTAR_TRY(begin_recording(step, kind, bucket, slot, kind.packed ? region.sizes->max_segments_per_request : 1));
  MSTAR_TRY(allocate_outputs(step));
  const auto run = [&] {
    Status ran = run_slices(step);
    device_.synchronize(stream);
    return ran;
  };
  if (slot == 0) MSTAR_TRY(run());  // kernels are loaded before anything is recorded
  step.recorded_region = index;
  MSTAR_TRY(run());
  if (!step.recorded) return internal_error("the forward does not come to it");
  return std::move(step.recorded);
}

Status Engine::capture_region(int index) {
  Region& region = regions_[static_cast<std::size_t>(index)];
  if (!region.sizes) return ok_status();
  std::vector<Bucket> buckets;
  const std::vector<int> rows = sizes_of(region.sizes->rows);
  const std::vector<int> tokens = up_to(region.sizes->tokens, options_.limits.max_tokens);
  for (std::size_t k = 0; k < region.spec.kinds.size(); ++k) {
    for (Bucket bucket : buckets_of(region.spec.kinds[k], rows, tokens)) {
      bucket.spec = static_cast<int>(k);
      MSTAR_TRY_ASSIGN(std::optional<Graphs> graphs,
                       record_both("region '" + region.spec.name + "'", bucket,
                                   [&](int slot) { return record_region(index, bucket, slot); }));
      if (!graphs) continue;
      buckets.push_back(bucket);
      region.graphs.push_back(std::move(*graphs));
    }
  }
  region.buckets = BucketTable(std::move(buckets));
  return ok_status();
}

}  // namespace mstar::engine
