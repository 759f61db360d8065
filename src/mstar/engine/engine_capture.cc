// Captured steps: which graphs a component has, which one a step leases, how they are recorded and replayed.
#include <algorithm>
#include <limits>

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

void Engine::lease(Step& step) {
  if (graphs_.empty()) return;
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
    step.rows.packed = spec.packed;
    for (int r = num_rows; r < buckets_.at(*bucket).rows; ++r) {
      step.rows.add({RequestId{}, spec.row.resources});
      step.demands.push_back(spec.row);
    }
    return;
  }
}

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
  // Two steps in flight, and what is still held of the one before them. Rows that have left a step in different steps
  // hold a block each: enough for that of small ones.
  for (const std::size_t bytes : layout.bytes) {
    const std::size_t of_rows =
        bytes <= BufferPool::kSmallBlock ? static_cast<std::size_t>(options_.limits.max_rows) : 0;
    if (bytes) sizes.insert(sizes.end(), resource::kNumSlots + 1 + of_rows, bytes);
  }
  MSTAR_TRY(options_.buffers->reserve(sizes));
  for (SlotMemory& memory : memory_) {
    MSTAR_TRY(memory.upload.reserve(upload_bytes));
    MSTAR_TRY(memory.readback.reserve(layout.bytes[kHostGroup]));
  }
  return ok_status();
}

Status Engine::allocate_static_memory(int max_rows) {
  for (SlotMemory& memory : memory_) {
    for (std::size_t s = 0; s < input_slots_.size(); ++s) {
      std::int64_t most = 0;
      for (const CaptureSpec& spec : captures_) {
        std::int64_t items = 0;
        for (const SlotSource& each : spec.row.sources)
          if (each.slot == static_cast<int>(s)) items += each.items;
        most = std::max(most, items * rows_of(spec, max_rows));
      }
      if (input_slots_[s].per_token && !spec_.capture.tokens.empty())
        most = std::max<std::int64_t>(most, options_.limits.max_tokens);
      const std::size_t bytes = static_cast<std::size_t>(most) * item_bytes(input_slots_[s]);
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
void Engine::add_recorded_rows(Step& step, const CaptureSpec& spec, const Bucket& bucket) const {
  step.rows.packed = spec.packed;
  for (int r = 0; r < bucket.rows; ++r) {
    resource::RowDemand row = spec.row.resources;
    if (spec.packed) row.tokens = (r + 1) * bucket.tokens / bucket.rows - r * bucket.tokens / bucket.rows;
    step.rows.add({RequestId{}, row});
    step.demands.push_back(spec.row);
  }
}

Result<std::unique_ptr<CapturedGraph>> Engine::record(const CaptureSpec& spec, const Bucket& bucket, int slot) {
  const int rows = bucket.rows;
  Step step(device_, arena_->arena(), options_.pool, resources_, body_->activations(), communicator());
  const Stream stream = step.ops().stream;
  SlotMemory& memory = memory_[static_cast<std::size_t>(slot)];
  step.own_slot = slot;
  step.rows.slot = first_plan_slot_ + slot;
  step.bucket = 0;  // any: inputs go to static memory
  add_recorded_rows(step, spec, bucket);
  for (const decl::ResourceRef ref : spec_.uses)
    MSTAR_TRY(resources_.at(ref)->plan(step.rows, device_.upload_stream()));
  MSTAR_TRY(gather(step));
  join_uploads(step);
  for (std::size_t s = 0; spec.packed && s < input_slots_.size(); ++s)
    if (input_slots_[s].per_token)
      step.input_views[s] = slot_view(input_slots_[s], memory.inputs[s].data(), bucket.tokens, device_.id());
  step.layout = OutputLayout::of(output_slots_, output_items(spec.row, output_slots_.size(), rows));
  for (std::size_t s = 0; s < output_slots_.size(); ++s) {
    auto& starts = step.output_starts.emplace_back(1, 0);
    const int items = output_items(spec.row, output_slots_.size(), 1)[s];
    for (int r = 0; r < rows; ++r) starts.push_back(starts.back() + items);
    std::byte* const base =
        memory.outputs[static_cast<std::size_t>(step.layout.group[s])].data() + step.layout.offset[s];
    step.output_views.push_back(slot_view(output_slots_[s], base, starts.back(), device_.id()));
  }
  step.inputs.resize(static_cast<std::size_t>(rows));
  step.results.resize(static_cast<std::size_t>(rows));
  // Once for real: kernels are loaded and libraries set up before anything is recorded.
  Status warmed;
  if (slot == 0) warmed = run_slices(step);
  device_.synchronize(stream);
  MSTAR_TRY(std::move(warmed));
  MSTAR_TRY(device_.begin_capture(stream));
  const Status ran = run_slices(step);
  auto graph = device_.end_capture(stream);
  if (!ran) return ran.error();
  return graph;
}

// The largest first: it must fit. `rows`: from the largest on.
std::vector<Bucket> Engine::buckets_of(const CaptureSpec& spec, const std::vector<int>& rows) const {
  std::vector<Bucket> out;
  const int most = options_.limits.max_tokens;
  const auto add = [&](int num_rows, int tokens) {
    if (tokens <= most) out.push_back({spec.walk, num_rows, tokens, spec.row.shape_key});
  };
  if (!spec.packed) {
    for (const int each : rows)
      if (each <= rows_of(spec, each)) add(each, each * spec.row.resources.tokens);
    return out;
  }
  std::vector<int> tokens = spec_.capture.tokens;  // they grow
  // Up to the longest step there can be, in the list's last stride where it ends before.
  if (tokens.size() > 1)
    for (const int stride = tokens.back() - tokens[tokens.size() - 2]; tokens.back() < most;)
      tokens.push_back(std::min(most, tokens.back() + stride));
  if (!tokens.empty() && tokens.back() > most) tokens.push_back(most);
  std::sort(tokens.rbegin(), tokens.rend());
  for (const int each : tokens)
    if (each > rows.front()) add(rows.front(), each);
  return out;
}

Status Engine::capture() {
  if (on_cpu()) return ok_status();
  MSTAR_TRY(reserve_buffers());
  if (!device_.supports_capture() || spec_.capture.rows.empty()) return ok_status();
  captures_ = body_->captures();
  for (CaptureSpec& spec : captures_)
    for (SlotSource& each : spec.row.sources)
      each.items = num_items(input_slots_[static_cast<std::size_t>(each.slot)], *each.value).value_or(0);
  if (captures_.empty()) {
    log_warn("component '{}' runs eagerly: its body captures nothing", spec_.name);
    return ok_status();
  }
  std::vector<int> sizes;
  for (const int rows : spec_.capture.rows)
    if (rows > 0 && rows <= options_.limits.max_rows) sizes.push_back(rows);
  if (sizes.empty()) return ok_status();
  // No step up to the most rows that there can be runs eagerly for its size alone.
  const int most = *std::max_element(spec_.capture.rows.begin(), spec_.capture.rows.end());
  if (most > options_.limits.max_rows) sizes.push_back(options_.limits.max_rows);
  std::sort(sizes.rbegin(), sizes.rend());  // the largest first: it must fit
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  MSTAR_TRY(allocate_static_memory(sizes.front()));
  std::vector<Bucket> buckets;
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const CaptureSpec& spec = captures_[c];
    for (Bucket bucket : buckets_of(spec, sizes)) {
      bucket.spec = static_cast<int>(c);
      Graphs graphs;
      Status recorded;
      for (int slot = 0; slot < resource::kNumSlots && recorded; ++slot) {
        auto graph = record(spec, bucket, slot);
        if (graph) {
          graphs.by_slot[static_cast<std::size_t>(slot)] = std::move(*graph);
        } else {
          recorded = graph.error();
        }
      }
      // What is not there now will not be there for requests either.
      // Nor may one rank run eagerly what the others replay: padding rows are in their sums.
      if (!recorded && (recorded.error().code == Code::unavailable || communicator())) return recorded.error();
      if (!recorded) {
        log_warn("component '{}': a step of {} rows and {} tokens runs eagerly, its graph could not be recorded: {}",
                 spec_.name, bucket.rows, bucket.tokens, recorded.error().message);
        continue;
      }
      buckets.push_back(bucket);
      graphs_.push_back(std::move(graphs));
    }
  }
  buckets_ = BucketTable(std::move(buckets));
  return ok_status();
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
