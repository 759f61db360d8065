// What goes into a step and what comes out: gathering the rows' values, output memory, reading results back.
#include <algorithm>
#include <cstring>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/engine/engine.h"
#include "mstar/engine/step.h"

namespace mstar::engine {

std::size_t item_bytes(const SlotSpec& spec) {
  std::size_t bytes = dtype_bytes(spec.dtype);
  for (const auto d : spec.item_dims) bytes *= static_cast<std::size_t>(d);
  return bytes;
}

TensorView slot_view(const SlotSpec& spec, void* pointer, std::int64_t items, DeviceId device) {
  std::vector<std::int64_t> dims = {items};
  dims.insert(dims.end(), spec.item_dims.begin(), spec.item_dims.end());
  return TensorView(pointer, spec.dtype, Shape(dims), device);
}

OutputLayout OutputLayout::of(const std::vector<SlotSpec>& specs, const std::vector<std::int32_t>& items) {
  OutputLayout out;
  for (std::size_t s = 0; s < specs.size(); ++s) {
    const int group = specs[s].to_host ? kHostGroup : kDeviceGroup;
    std::size_t& end = out.bytes[static_cast<std::size_t>(group)];
    out.group.push_back(group);
    out.offset.push_back((end + 255) & ~std::size_t{255});
    if (items[s] > 0) end = out.offset[s] + static_cast<std::size_t>(items[s]) * item_bytes(specs[s]);
  }
  return out;
}

namespace {

// A value as bytes that the device can read in place, or that must be uploaded.
struct Source {
  const void* pointer = nullptr;
  std::size_t bytes = 0;
  bool on_device = false;
  DeviceId device = {};  // where it is on one
};

// The items of a value, or an error when the slot cannot take it. `source` gets its bytes.
Result<std::int64_t> items_of(const SlotSpec& spec, const Value& value, const std::string& component, Source& source) {
  const auto* row = dynamic_cast<const RowBuffer*>(value.device.get());
  const TensorView view = row ? row->view() : TensorView();
  const DType dtype = row ? view.dtype : value.host.dtype();
  const std::span<const std::int64_t> dims =
      row ? view.shape.dims() : std::span(value.host.dims().begin(), value.host.dims().size());
  source = row ? Source{view.pointer, view.bytes(), true, view.device}
               : Source{value.host.bytes().data(), value.host.bytes().size(), false};
  const std::size_t rank = spec.item_dims.size();
  const bool listed = dims.size() == rank + 1;
  if (dtype == spec.dtype && (listed || dims.size() == rank) &&
      std::equal(spec.item_dims.begin(), spec.item_dims.end(), dims.begin() + (listed ? 1 : 0)))
    return listed ? dims[0] : 1;
  std::string got(dtype_name(dtype));
  for (const auto d : dims) got += " " + std::to_string(d);
  return internal_error("component '" + component + "': slot '" + spec.name + "' cannot take a value of " + got);
}

// Copies pieces to one place after the other. Neighbours in the source are one copy, and what is on the host goes
// through pinned memory in one piece where it can, on a stream of its own.
class Gatherer {
 public:
  Gatherer(Device& device, Stream stream, Stream uploads, std::byte* to, std::byte* staging)
      : device_(device), stream_(stream), uploads_(uploads), to_(to), staging_(staging) {}
  void add(const Source& source) {
    Source piece = source;
    if (!piece.on_device) {
      if (piece.bytes) std::memcpy(staging_, source.pointer, piece.bytes);
      piece.pointer = staging_;
      staging_ += piece.bytes;
    }
    const bool joins = run_.bytes && run_.on_device == piece.on_device &&
                       static_cast<const std::byte*>(run_.pointer) + run_.bytes == piece.pointer;
    if (joins) {
      run_.bytes += piece.bytes;
    } else {
      flush();
      run_ = piece;
    }
  }
  void flush() {
    if (run_.on_device) {
      device_.copy_within(to_, run_.pointer, run_.bytes, stream_);
    } else if (run_.bytes) {
      device_.copy_to_device(to_, run_.pointer, run_.bytes, uploads_);
    }
    to_ += run_.bytes;
    run_ = {};
  }
  std::byte* staging() const { return staging_; }

 private:
  Device& device_;
  Stream stream_, uploads_;
  std::byte* to_;
  std::byte* staging_;
  Source run_;
};

}  // namespace

std::optional<std::int64_t> num_items(const SlotSpec& spec, const Value& value) {
  Source source;
  auto items = items_of(spec, value, {}, source);
  return items ? std::optional(*items) : std::nullopt;
}

Status Engine::gather(Step& step) {
  SlotMemory& memory = memory_[static_cast<std::size_t>(step.own_slot)];
  const std::size_t num_slots = input_slots_.size(), num_real = step.inputs.size();
  step.input_views.resize(num_slots);
  step.input_starts.assign(num_slots, {0});
  std::vector<std::vector<Source>> sources(num_slots);
  std::size_t staged_bytes = 0;
  for (std::size_t s = 0; s < num_slots; ++s) {
    sources[s].reserve(step.demands.size());
    step.input_starts[s].reserve(step.demands.size() + 1);
    for (const RowDemand& demand : step.demands) {
      std::int64_t items = 0;
      for (const SlotSource& each : demand.sources) {
        if (each.slot != static_cast<int>(s)) continue;
        MSTAR_TRY_ASSIGN(const std::int64_t more,
                         items_of(input_slots_[s], *each.value, spec_.name, sources[s].emplace_back()));
        MSTAR_CHECK(each.begin + each.items <= more, "a value has fewer items than when its row was declared");
        Source& source = sources[s].back();
        source.pointer = static_cast<const std::byte*>(source.pointer) +
                         static_cast<std::size_t>(each.begin) * item_bytes(input_slots_[s]);
        source.bytes = static_cast<std::size_t>(each.items) * item_bytes(input_slots_[s]);
        items += each.items;
        if (!sources[s].back().on_device) staged_bytes += sources[s].back().bytes;
      }
      step.input_starts[s].push_back(step.input_starts[s].back() + static_cast<std::int32_t>(items));
    }
  }
  std::byte* staging = nullptr;
  if (!on_cpu() && staged_bytes) {
    MSTAR_TRY_ASSIGN(staging, memory.upload.reserve(staged_bytes));
  }
  for (std::size_t s = 0; s < num_slots; ++s) {
    const SlotSpec& spec = input_slots_[s];
    const std::int64_t items = step.input_starts[s].back();
    const auto& from = sources[s];
    const bool is_here = from.size() == 1 && (on_cpu() || (from[0].on_device && from[0].device == device_.id()));
    if (!step.is_static && is_here) {
      step.input_views[s] = slot_view(spec, const_cast<void*>(from[0].pointer), items, device_.id());
      continue;
    }
    std::byte* to = nullptr;
    if (step.is_static) {
      to = memory.inputs[s].data();
    } else {
      MSTAR_TRY_ASSIGN(auto block, options_.buffers->take(static_cast<std::size_t>(items) * item_bytes(spec)));
      to = static_cast<std::byte*>(block->pointer);
      step.held.push_back(std::move(block));
    }
    step.input_views[s] = slot_view(spec, to, num_real > 0 ? step.input_starts[s][num_real] : items, device_.id());
    if (on_cpu()) {
      for (const Source& each : from) {
        if (each.bytes) std::memcpy(to, each.pointer, each.bytes);
        to += each.bytes;
      }
      continue;
    }
    // Memory of the pool may still be read by steps before this one; the slot's own has rested since its last step.
    const Stream stream = step.ops().stream;
    Gatherer gatherer(device_, stream, step.is_static ? device_.upload_stream() : stream, to, staging);
    const std::int64_t real_items = step.input_starts[s][num_real];
    const std::size_t real_bytes = static_cast<std::size_t>(real_items) * item_bytes(spec);
    // Static memory keeps the padding of earlier steps: only what they overwrote is padded again.
    std::int64_t padded = 0;
    SlotMemory::Padding* const held = step.is_static ? &memory.padding[s] : nullptr;
    std::size_t done = 0;
    for (const Source& each : from) {
      const bool is_padding = done >= real_bytes && step.is_static;
      done += each.bytes;
      if (is_padding && items <= held->end && real_items + padded >= held->begin) break;
      gatherer.add(each);
      if (is_padding) padded += static_cast<std::int64_t>(each.bytes / item_bytes(spec));
    }
    gatherer.flush();
    staging = gatherer.staging();
    if (!held || (items == real_items && items <= held->begin)) continue;  // no padding was written, or overwritten
    const bool meets = items >= held->begin && items <= held->end;
    *held = {real_items, meets ? held->end : items};
  }
  return ok_status();
}

Status Engine::allocate_outputs(Step& step) {
  const std::size_t num_slots = output_slots_.size();
  const auto* const of_graph = step.rows.packed && step.bucket
                                   ? &captures_[static_cast<std::size_t>(buckets_.at(*step.bucket).spec)].row.results
                                   : nullptr;
  const auto results_of = [&](std::size_t row) -> const std::vector<SlotResult>& {
    if (of_graph) return *of_graph;
    const RowDemand& demand = step.demands[row];
    const bool has_place = step.results_of_places && row < step.inputs.size() && !demand.resources.ends;
    return has_place ? *step.results_of_places : demand.results;
  };
  std::vector<std::int32_t> items;
  step.output_starts.assign(num_slots, {0});
  for (std::size_t s = 0; s < num_slots; ++s) {
    auto& starts = step.output_starts[s];
    starts.reserve(step.demands.size() + 1);
    for (std::size_t r = 0; r < step.demands.size(); ++r) {
      std::int32_t count = 0;
      for (const SlotResult& each : results_of(r))
        if (each.slot == static_cast<int>(s)) count += each.items;
      starts.push_back(starts.back() + count);
    }
    items.push_back(starts.back());
  }
  step.layout = OutputLayout::of(output_slots_, items);
  for (std::size_t group = 0; group < kNumGroups; ++group) {
    if (step.layout.bytes[group] == 0) continue;
    MSTAR_TRY_ASSIGN(step.output_blocks[group], options_.buffers->take(step.layout.bytes[group]));
  }
  if (!on_cpu() && step.layout.bytes[kHostGroup])
    MSTAR_TRY(memory_[static_cast<std::size_t>(step.own_slot)].readback.reserve(step.layout.bytes[kHostGroup]));
  for (std::size_t s = 0; s < num_slots; ++s) {
    const auto& block = step.output_blocks[static_cast<std::size_t>(step.layout.group[s])];
    std::byte* const base = block ? static_cast<std::byte*>(block->pointer) + step.layout.offset[s] : nullptr;
    step.output_views.push_back(slot_view(output_slots_[s], base, items[s], device_.id()));
  }
  return ok_status();
}

// A slot's tables and static inputs were read for the last time by its last step, which the host has read. So they are
// uploaded while the step in front runs, and the forward waits for them alone.
void Engine::join_uploads(Step& step) {
  const Stream uploads = device_.upload_stream(), stream = step.ops().stream;
  if (uploads.native == stream.native) return;
  Event& uploaded = *memory_[static_cast<std::size_t>(step.own_slot)].uploaded;
  uploaded.record(uploads);
  uploaded.wait_on(stream);
}

// The step behind does not wait for the copy.
Status Engine::read_back(Step& step) {
  if (on_cpu()) return ok_status();
  const PhaseScope scope(options_.profile, Phase::read_back);
  SlotMemory& memory = memory_[static_cast<std::size_t>(step.own_slot)];
  const Stream stream = step.ops().stream, readback = device_.readback_stream();
  if (readback.native != stream.native) {
    memory.ran->record(stream);
    memory.ran->wait_on(readback);
  }
  if (const auto& block = step.output_blocks[kHostGroup])
    device_.copy_to_host(memory.readback.data(), block->pointer, step.layout.bytes[kHostGroup], readback);
  memory.done->record(readback);
  return ok_status();
}

namespace {

// Walks a row's results: call(result, begin item of its slot).
template <class Call>
void for_each_result(const Step& step, int row, std::vector<std::int32_t>& cursor, Call&& call) {
  std::fill(cursor.begin(), cursor.end(), 0);
  for (const SlotResult& each : step.demand(row).results) {
    const auto s = static_cast<std::size_t>(each.slot);
    call(each, step.output_starts[s][static_cast<std::size_t>(row)] + std::exchange(cursor[s], cursor[s] + each.items));
  }
}

}  // namespace

namespace {

// The output group that the host reads, of one step: gives its values to the host. The large ones share one copy.
class HostGroup {
 public:
  // `base` is where the group lies on the device, `from` where the host has it; both null when all values are empty.
  HostGroup(const void* base, const std::byte* from, std::size_t num_bytes)
      : base_(static_cast<const std::byte*>(base)), from_(from), num_bytes_(num_bytes) {}
  HostValue value_of(const TensorView& view) {
    const auto at = view.empty() ? 0 : static_cast<std::size_t>(static_cast<const std::byte*>(view.pointer) - base_);
    if (view.bytes() <= HostValue::kMostInPlace)
      return HostValue::copy_of(view.dtype, view.shape.dims(), {from_ + at, view.bytes()});
    if (!copy_) copy_ = std::make_shared<const std::vector<std::byte>>(from_, from_ + num_bytes_);
    return HostValue::part_of(copy_, view.dtype, view.shape.dims(), std::span(*copy_).subspan(at, view.bytes()));
  }

 private:
  const std::byte* base_;
  const std::byte* from_;
  std::size_t num_bytes_;
  std::shared_ptr<const std::vector<std::byte>> copy_;
};

}  // namespace

void Engine::make_outputs(Step& step) {
  if (std::exchange(step.has_outputs, true)) return;
  const auto& host_block = step.output_blocks[kHostGroup];
  const auto* const host_bytes = host_block ? static_cast<const std::byte*>(host_block->pointer) : nullptr;
  HostGroup host(host_bytes, host_bytes, step.layout.bytes[kHostGroup]);  // where the host is the device
  std::vector<std::int32_t> cursor(output_slots_.size());
  for (int r = 0; r < step.num_rows(); ++r) {
    RowResult& result = step.results[static_cast<std::size_t>(r)];
    if (step.failure && !result.error) result.error = *step.failure;
    if (result.error) continue;
    result.outputs.resize(step.row(r).run->outputs.size());  // of a part all empty
    for_each_result(step, r, cursor, [&](const SlotResult& each, std::int32_t begin) {
      if (each.output < 0) return;
      const auto s = static_cast<std::size_t>(each.slot);
      TensorView view = step.output_views[s].slice(begin, begin + each.items);
      if (each.drop_items_axis) view = view.at(0);
      const auto& block = step.output_blocks[static_cast<std::size_t>(step.layout.group[s])];
      Values& values = result.outputs[static_cast<std::size_t>(each.output)];
      if (output_slots_[s].to_host && on_cpu()) {
        values.emplace_back(host.value_of(view));
        return;
      }
      if (output_slots_[s].to_host) step.host_parts.push_back({r, each.output, static_cast<int>(values.size())});
      values.emplace_back(std::make_shared<RowBuffer>(block, view));
    });
  }
}

void Engine::bring_to_host(Step& step) const {
  if (step.host_parts.empty()) return;
  const auto& block = step.output_blocks[kHostGroup];
  HostGroup host(block ? block->pointer : nullptr, memory_[static_cast<std::size_t>(step.own_slot)].readback.data(),
                 step.layout.bytes[kHostGroup]);
  for (const Step::HostPart& part : step.host_parts) {
    RowResult& result = step.results[static_cast<std::size_t>(part.row)];
    if (result.error) continue;
    Value& value = result.outputs[static_cast<std::size_t>(part.output)][static_cast<std::size_t>(part.index)];
    auto& buffer = const_cast<RowBuffer&>(static_cast<const RowBuffer&>(*value.device));
    value.host = host.value_of(buffer.view());
    buffer.set_read(value.host);  // copies of the value in later rows learn of it too
  }
}

}  // namespace mstar::engine
