// Captured steps: which graphs a component has, which one a step leases, how they are recorded and replayed.
#include <algorithm>

#include "mstar/base/load_progress.h"
#include "mstar/base/log.h"
#include "mstar/engine/engine.h"
#include "mstar/engine/step.h"

namespace mstar::engine {
namespace {

// Items of each slot that one row of a captured step brings or makes.
std::vector<std::int32_t> output_items(const RowDemand& demand, std::size_t num_slots, int rows) {
  std::vector<std::int32_t> items(num_slots);
  for (const SlotResult& each : demand.results) items[static_cast<std::size_t>(each.slot)] += each.items * rows;
  return items;
}

bool same_results(const std::vector<SlotResult>& a, const std::vector<SlotResult>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const SlotResult& x, const SlotResult& y) { return x.slot == y.slot && x.items == y.items; });
}

// The label does not matter: it only says which pages and slots the plan names.
bool same_resources(const resource::RowDemand& a, const resource::RowDemand& b) {
  return a.tokens == b.tokens && a.context_tokens == b.context_tokens && a.samples == b.samples;
}

// The most rows of a kind, of as many as there may be at all.
int rows_of(const CaptureSpec& spec, int max_rows) {
  return spec.max_rows > 0 ? std::min(spec.max_rows, max_rows) : max_rows;
}

}  // namespace

RowDemand of_segments(const RowDemand& segment, int count) {
  RowDemand out = segment;
  out.segments = count;
  for (int i = 1; i < count; ++i) out.sources.insert(out.sources.end(), segment.sources.begin(), segment.sources.end());
  return out;
}

bool Engine::matches(const RowInputs& row, const RowDemand& demand, const CaptureSpec& spec) const {
  if (!demand.may_replay || demand.shape_key != spec.row.shape_key) return false;
  if (spec.walk.valid() && spec.walk != row.walk) return false;
  if (!same_resources(demand.resources, spec.row.resources) || !same_results(demand.results, spec.row.results))
    return false;
  return std::equal(demand.sources.begin(), demand.sources.end(), spec.row.sources.begin(), spec.row.sources.end(),
                    [](const SlotSource& a, const SlotSource& b) { return a.slot == b.slot && a.items == b.items; });
}

bool Engine::may_join(const RowInputs& row, const RowDemand& demand, const CaptureSpec& spec) const {
  if (!demand.may_replay || demand.shape_key != spec.row.shape_key) return false;
  if (spec.walk.valid() && spec.walk != row.walk) return false;
  if (demand.resources.context_tokens != spec.row.resources.context_tokens) return false;
  if (demand.resources.ends ? !same_results(demand.results, spec.row.results) : !demand.results.empty()) return false;
  return std::all_of(demand.sources.begin(), demand.sources.end(), [&](const SlotSource& each) {
    return input_slots_[static_cast<std::size_t>(each.slot)].per_token;
  });
}

bool Engine::lease_whole(Step& step) {
  if (graphs_.empty()) return false;
  const int num_rows = step.num_rows();
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const CaptureSpec& spec = captures_[c];
    // Rows of one token each have graphs that are faster, or are too many.
    if (spec.packed && step.rows.num_tokens() <= num_rows) continue;
    bool all = true;
    for (int r = 0; r < num_rows && all; ++r)
      all = spec.packed ? may_join(step.row(r), step.demand(r), spec) : matches(step.row(r), step.demand(r), spec);
    if (!all) continue;
    const auto bucket =
        buckets_.find({spec.walk, num_rows, step.rows.num_tokens(), spec.row.shape_key, static_cast<int>(c)});
    if (!bucket) continue;
    step.bucket = bucket;
    step.is_static = true;
    step.rows.packed = spec.packed;
    for (int r = num_rows; r < buckets_.at(*bucket).rows; ++r) {
      step.rows.add({RequestId{}, spec.row.resources});
      step.demands.push_back(spec.row);
    }
    return true;
  }
  return false;
}

// Where rows' outputs are so large that all requests' would take more, late steps allocate.
constexpr std::size_t kMostHeldBytes = std::size_t{1} << 30;

Status Engine::reserve_buffers() {
  const auto max_items = [&](const SlotSpec& slot) {
    if (slot.max_items > 0) return slot.max_items;
    return slot.per_token ? options_.limits.max_tokens : options_.limits.max_rows;
  };
  std::vector<std::size_t> sizes;
  std::size_t upload_bytes = 0;
  for (const SlotSpec& slot : input_slots_) {
    const std::size_t bytes = static_cast<std::size_t>(max_items(slot)) * item_bytes(slot);
    upload_bytes += bytes;
    sizes.insert(sizes.end(), resource::kNumSlots, bytes);
  }
  std::vector<std::int32_t> items;
  for (const SlotSpec& slot : output_slots_) items.push_back(max_items(slot));
  const OutputLayout layout = OutputLayout::of(output_slots_, items);
  // Two steps in flight, and what is still held of the one before them. Then what rows that have left their steps hold
  // until another component has read it: of small blocks one each, for each may have left another step; of large ones
  // the bytes of their rows.
  for (const std::size_t bytes : layout.bytes) {
    if (bytes == 0) continue;
    sizes.insert(sizes.end(), resource::kNumSlots + 1, bytes);
    const auto max_rows = static_cast<std::size_t>(options_.limits.max_rows);
    if (bytes <= BufferPool::kSmallBlock) {
      sizes.insert(sizes.end(), max_rows, bytes);
    } else {
      const std::size_t of_row = (bytes + max_rows - 1) / max_rows;
      const std::size_t of_all = of_row * static_cast<std::size_t>(options_.limits.max_requests);
      sizes.push_back(std::max(bytes, std::min(of_all, kMostHeldBytes)));
    }
  }
  MSTAR_TRY(options_.buffers->reserve(sizes));
  for (SlotMemory& memory : memory_) {
    MSTAR_TRY(memory.upload.reserve(upload_bytes));
    MSTAR_TRY(memory.readback.reserve(layout.bytes[kHostGroup]));
  }
  return ok_status();
}

// Of the largest step of each input slot.
std::vector<std::int64_t> Engine::static_items(int max_rows) const {
  std::vector<std::int64_t> most(input_slots_.size());
  const auto add = [&](const CaptureSpec& spec, std::int64_t times) {
    std::vector<std::int64_t> items(input_slots_.size());
    for (const SlotSource& each : spec.row.sources) items[static_cast<std::size_t>(each.slot)] += each.items * times;
    for (std::size_t s = 0; s < items.size(); ++s) most[s] = std::max(most[s], items[s]);
  };
  bool packed = !spec_.capture.tokens.empty();
  for (const CaptureSpec& spec : captures_) add(spec, rows_of(spec, max_rows));
  for (const Region& region : regions_) {
    if (!region.sizes) continue;
    packed |= !region.sizes->tokens.empty();
    const std::vector<int> rows = sizes_of(region.sizes->rows);
    for (const CaptureSpec& kind : region.spec.kinds)
      if (!rows.empty()) add(kind, rows_of(kind, rows.front()) * region.sizes->max_segments_per_request);
  }
  for (std::size_t s = 0; packed && s < most.size(); ++s)
    if (input_slots_[s].per_token) most[s] = std::max<std::int64_t>(most[s], options_.limits.max_tokens);
  return most;
}

Status Engine::allocate_static_memory(int max_rows) {
  const std::vector<std::int64_t> most = static_items(max_rows);
  for (SlotMemory& memory : memory_) {
    for (std::size_t s = 0; s < input_slots_.size(); ++s) {
      const std::size_t bytes = static_cast<std::size_t>(most[s]) * item_bytes(input_slots_[s]);
      captured_bytes_ += bytes;
      MSTAR_TRY_ASSIGN(StaticBlock block, StaticBlock::allocate(device_, bytes));
      // Items past those that a packed step brings are read too.
      device_.fill_zero(block.data(), bytes, device_.default_stream());
      memory.inputs.push_back(std::move(block));
      memory.padding.emplace_back();
    }
    std::array<std::size_t, kNumGroups> bytes = {};
    for (const CaptureSpec& spec : captures_) {
      const auto layout =
          OutputLayout::of(output_slots_, output_items(spec.row, output_slots_.size(), rows_of(spec, max_rows)));
      for (std::size_t group = 0; group < kNumGroups; ++group)
        bytes[group] = std::max(bytes[group], layout.bytes[group]);
    }
    for (std::size_t group = 0; group < kNumGroups; ++group) {
      captured_bytes_ += bytes[group];
      MSTAR_TRY_ASSIGN(memory.outputs[group], StaticBlock::allocate(device_, bytes[group]));
    }
  }
  device_.synchronize(device_.default_stream());  // before any upload, which has a stream of its own
  return ok_status();
}

Status Engine::run_slices(Step& step) {
  step.arena.reset();
  for (int slice = 0; slice < body_->num_slices(); ++slice) MSTAR_TRY(body_->forward(step, slice));
  for (const RowResult& row : step.results)
    if (row.error) return *row.error;
  return ok_status();
}

// Of a packed step as evenly long as can be.
void Engine::add_recorded_rows(Step& step, const CaptureSpec& spec, const Bucket& bucket, int segments) const {
  step.rows.packed = spec.packed;
  const RowDemand whole = of_segments(spec.row, segments);
  for (int r = 0; r < bucket.rows; ++r) {
    resource::RowDemand row = spec.row.resources;
    if (spec.packed) row.tokens = (r + 1) * bucket.tokens / bucket.rows - r * bucket.tokens / bucket.rows;
    step.rows.add({RequestId{}, row});
    step.demands.push_back(whole);
  }
}

// A step of rows of no request, up to its inputs.
Status Engine::begin_recording(Step& step, const CaptureSpec& spec, const Bucket& bucket, int slot, int segments) {
  SlotMemory& memory = memory_[static_cast<std::size_t>(slot)];
  step.own_slot = slot;
  step.rows.slot = first_plan_slot_ + slot;
  step.is_static = true;
  step.borders = &borders_;
  step.border_memory = arena_->front();
  step.regions.resize(regions_.size());
  add_recorded_rows(step, spec, bucket, segments);
  for (const decl::ResourceRef ref : spec_.uses)
    MSTAR_TRY(resources_.at(ref)->plan(step.rows, device_.upload_stream()));
  MSTAR_TRY(gather(step));
  join_uploads(step);
  for (std::size_t s = 0; spec.packed && s < input_slots_.size(); ++s)
    if (input_slots_[s].per_token)
      step.input_views[s] = slot_view(input_slots_[s], memory.inputs[s].data(), bucket.tokens, device_.id());
  step.inputs.resize(static_cast<std::size_t>(bucket.rows));
  step.results.resize(static_cast<std::size_t>(bucket.rows));
  return ok_status();
}

Result<std::unique_ptr<CapturedGraph>> Engine::record(const CaptureSpec& spec, const Bucket& bucket, int slot) {
  const int rows = bucket.rows;
  Step step(device_, step_arena(), options_.pool, resources_, body_->activations(), mesh());
  const Stream stream = step.ops().stream;
  SlotMemory& memory = memory_[static_cast<std::size_t>(slot)];
  MSTAR_TRY(begin_recording(step, spec, bucket, slot, 1));
  step.layout = OutputLayout::of(output_slots_, output_items(spec.row, output_slots_.size(), rows));
  for (std::size_t s = 0; s < output_slots_.size(); ++s) {
    auto& starts = step.output_starts.emplace_back(1, 0);
    const int items = output_items(spec.row, output_slots_.size(), 1)[s];
    for (int r = 0; r < rows; ++r) starts.push_back(starts.back() + items);
    std::byte* const base =
        memory.outputs[static_cast<std::size_t>(step.layout.group[s])].data() + step.layout.offset[s];
    step.output_views.push_back(slot_view(output_slots_[s], base, starts.back(), device_.id()));
  }
  // Once for real: kernels are loaded and libraries set up before anything is recorded.
  Status warmed;
  if (slot == 0) warmed = run_slices(step);
  device_.synchronize(stream);
  MSTAR_TRY(std::move(warmed));
  note_load_progress();
  MSTAR_TRY(device_.begin_capture(stream));
  const Status ran = run_slices(step);
  auto graph = device_.end_capture(stream);
  if (!ran) return ran.error();
  return graph;
}

// Rows or packed tokens from the largest on: it must fit.
std::vector<Bucket> Engine::buckets_of(const CaptureSpec& spec, const std::vector<int>& rows,
                                       const std::vector<int>& tokens) const {
  std::vector<Bucket> out;
  const auto add = [&](int num_rows, int num_tokens) {
    if (num_tokens <= options_.limits.max_tokens) out.push_back({spec.walk, num_rows, num_tokens, spec.row.shape_key});
  };
  if (!spec.packed) {
    for (const int each : rows)
      if (each <= rows_of(spec, each)) add(each, each * spec.row.resources.tokens);
    return out;
  }
  const int most = rows.empty() ? 0 : rows_of(spec, rows.front());
  const int few = 4 * spec.few_rows < most ? spec.few_rows : 0;
  for (const int num_tokens : tokens) {
    if (most > 0 && num_tokens > most) add(most, num_tokens);
    if (few > 0 && num_tokens > few && num_tokens <= spec.few_rows_tokens) add(few, num_tokens);
  }
  return out;
}

// Those of the list that a step may have, and the most that there can be where the list goes past it: no step is eager
// for its size alone. From the largest on.
std::vector<int> Engine::up_to(const std::vector<int>& sizes, int most) {
  std::vector<int> out;
  for (const int each : sizes)
    if (each > 0 && each <= most) out.push_back(each);
  if (!sizes.empty() && *std::max_element(sizes.begin(), sizes.end()) > most) out.push_back(most);
  std::sort(out.rbegin(), out.rend());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<int> Engine::sizes_of(const std::vector<int>& rows) const { return up_to(rows, options_.limits.max_rows); }

// Of packed steps: up to the longest that there can be, in the list's last stride where it ends before.
std::vector<int> Engine::packed_tokens() const {
  const int most = options_.limits.max_tokens;
  std::vector<int> tokens = spec_.capture.tokens;  // they grow
  if (tokens.size() > 1)
    for (const int stride = tokens.back() - tokens[tokens.size() - 2]; tokens.back() < most;)
      tokens.push_back(std::min(most, tokens.back() + stride));
  return up_to(tokens, most);
}

Status Engine::capture() {
  if (on_cpu()) return ok_status();
  MSTAR_TRY(reserve_buffers());
  if (!device_.supports_capture()) return ok_status();
  const std::vector<int> sizes = sizes_of(spec_.capture.rows);
  if (!sizes.empty()) captures_ = body_->captures();
  const auto count_items = [&](CaptureSpec& spec) {
    for (SlotSource& each : spec.row.sources)
      each.items = num_items(input_slots_[static_cast<std::size_t>(each.slot)], *each.value).value_or(0);
  };
  for (CaptureSpec& spec : captures_) count_items(spec);
  bool has_regions = false;
  for (Region& region : regions_) {
    for (CaptureSpec& kind : region.spec.kinds) count_items(kind);
    has_regions |= region.sizes != nullptr;
  }
  if (captures_.empty() && !sizes.empty())
    log_warn("component '{}' runs eagerly: its body captures nothing", spec_.name);
  if (captures_.empty() && !has_regions) return ok_status();
  MSTAR_TRY(allocate_static_memory(sizes.empty() ? 0 : sizes.front()));
  MSTAR_TRY(capture_whole(sizes));
  for (std::size_t r = 0; r < regions_.size(); ++r) MSTAR_TRY(capture_region(static_cast<int>(r)));
  return ok_status();
}

Status Engine::capture_whole(const std::vector<int>& sizes) {
  std::vector<Bucket> buckets;
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const CaptureSpec& spec = captures_[c];
    for (Bucket bucket : buckets_of(spec, sizes, packed_tokens())) {
      bucket.spec = static_cast<int>(c);
      MSTAR_TRY_ASSIGN(std::optional<Graphs> graphs,
                       record_both("a step", bucket, [&](int slot) { return record(spec, bucket, slot); }));
      if (!graphs) continue;
      buckets.push_back(bucket);
      graphs_.push_back(std::move(*graphs));
    }
  }
  buckets_ = BucketTable(std::move(buckets));
  return ok_status();
}

// Nothing when it cannot be recorded, or graphs have taken what they may: then it runs eagerly.
Result<std::optional<Graphs>> Engine::record_both(const std::string& what, const Bucket& bucket,
                                                  const RecordSlot& record) {
  std::optional<Graphs> none;
  if (mesh().alone() && num_captured_nodes_ >= options_.most_graph_nodes) {
    log_warn("component '{}': {} of {} rows and {} tokens runs eagerly, its graphs have {} nodes already", spec_.name,
             what, bucket.rows, bucket.tokens, num_captured_nodes_);
    return none;
  }
  Graphs graphs;
  for (int slot = 0; slot < resource::kNumSlots; ++slot) {
    auto graph = record(slot);
    // One rank may not run eagerly what the others replay: padding rows are in their sums.
    if (const MeshEnds group = mesh(); !group.alone() && !graph) {
      group.abort("component '" + spec_.name + "' was not recorded on rank " + std::to_string(group.all->rank()) +
                  ": " + graph.error().message);
      return graph.error();
    }
    // What is not there now will not be there for requests either.
    if (!graph && graph.error().code == Code::unavailable) return graph.error();
    if (!graph) {
      log_warn("component '{}': {} of {} rows and {} tokens runs eagerly, its graph could not be recorded: {}",
               spec_.name, what, bucket.rows, bucket.tokens, graph.error().message);
      return none;
    }
    num_captured_nodes_ += (*graph)->num_nodes();
    graphs.by_slot[static_cast<std::size_t>(slot)] = std::move(*graph);
  }
  return std::optional(std::move(graphs));
}

int Engine::num_graphs() const {
  std::size_t count = graphs_.size();
  for (const Region& region : regions_) count += region.graphs.size();
  return static_cast<int>(count) * resource::kNumSlots;
}

Status Engine::replay(Step& step) {
  const Stream stream = step.ops().stream;
  const auto slot = static_cast<std::size_t>(step.own_slot);
  MSTAR_TRY(graphs_[static_cast<std::size_t>(*step.bucket)].by_slot[slot]->launch(stream));
  // The graph's own outputs are overwritten by the next step of this slot; values may live longer.
  for (std::size_t group = 0; group < kNumGroups; ++group)
    if (const auto& block = step.output_blocks[group])
      device_.copy_within(block->pointer, memory_[slot].outputs[group].data(), step.layout.bytes[group], stream);
  return ok_status();
}

std::size_t Engine::num_graph_nodes(int bucket) const {
  return graphs_[static_cast<std::size_t>(bucket)].by_slot[0]->num_nodes();
}

}  // namespace mstar::engine
