// One step of one component between prepare and finish. Internal to engine/.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mstar/base/check.h"
#include "mstar/engine/buffers.h"
#include "mstar/engine/engine.h"
#include "mstar/engine/slot_memory.h"

namespace mstar::engine {

// Bytes of one item of a batch tensor.
std::size_t item_bytes(const SlotSpec& spec);
TensorView slot_view(const SlotSpec& spec, void* pointer, std::int64_t items, DeviceId device);

// Items of a value; nothing when the slot cannot take it.
std::optional<std::int64_t> num_items(const SlotSpec& spec, const Value& value);

// Where the output slots of a step lie in the two groups.
struct OutputLayout {
  std::vector<int> group;           // per output slot
  std::vector<std::size_t> offset;  // per output slot, in its group
  std::array<std::size_t, kNumGroups> bytes = {};
  // `items` per output slot. Each slot starts on 256 bytes.
  static OutputLayout of(const std::vector<SlotSpec>& specs, const std::vector<std::int32_t>& items);
};

// The demand of a row of so many segments.
RowDemand of_segments(const RowDemand& segment, int count);

class Step final : public Forward {
 public:
  Step(Device& device, const Arena& memory, ThreadPool* pool, ResourceSet& resources, DType activations,
       const MeshEnds& mesh)
      : arena(memory),
        context_{device, device.default_stream(), arena, pool, activations, mesh.tensor, mesh.sequence},
        resources_(resources) {}
  Step(const Step&) = delete;  // the context refers to the step's own arena
  Step& operator=(const Step&) = delete;
  // Also a step that an exception cut off gives its slot back.
  ~Step() override {
    if (slots) slots->give_back(own_slot);
  }

  void reserve(std::size_t num_rows) {
    inputs.reserve(num_rows);
    demands.reserve(num_rows);
    results.reserve(num_rows);
    rows.rows.reserve(num_rows);
    rows.token_offsets.reserve(num_rows + 1);
  }
  OpContext& ops() override { return context_; }
  int num_rows() const override { return static_cast<int>(inputs.size()); }
  bool has_all_places() const override { return rows.packed; }
  Status run_region(int region, const std::function<Status()>& part) override;
  TensorView border(int index) const override {
    MSTAR_CHECK(borders != nullptr, "a step without borders");
    return borders->view(index, border_memory, num_rows(), token_offsets().back(), context_.device.id());
  }
  const RowInputs& row(int r) const override { return inputs[static_cast<std::size_t>(r)]; }
  const RowDemand& demand(int r) const override { return demands[static_cast<std::size_t>(r)]; }
  TensorView input(int slot) const override { return input_views[static_cast<std::size_t>(slot)]; }
  std::span<const std::int32_t> input_offsets(int slot) const override {
    return of_rows(input_starts[static_cast<std::size_t>(slot)]);
  }
  TensorView output(int slot) const override { return output_views[static_cast<std::size_t>(slot)]; }
  std::span<const std::int32_t> output_offsets(int slot) const override {
    return of_rows(output_starts[static_cast<std::size_t>(slot)]);
  }
  resource::Resource& resource(decl::ResourceRef ref) const override {
    resource::Resource* found = resources_.at(ref);
    MSTAR_CHECK(found != nullptr, "a component reads a resource that it did not declare in `uses`");
    return *found;
  }
  int plan_slot() const override { return rows.slot; }
  std::span<const std::int32_t> token_offsets() const override { return of_rows(rows.token_offsets); }
  void stop_loop(int r, std::string_view loop) override {
    results[static_cast<std::size_t>(r)].stopped_loops.emplace_back(loop);
  }
  void fail_row(int r, Error error) override { results[static_cast<std::size_t>(r)].error = std::move(error); }

  // Rows that pad a leased bucket stand behind the real ones in `rows` and `demands`, not in `inputs` and `results`.
  // Behind them `demands` may have one more, of segments alone.
  std::vector<RowInputs> inputs;
  std::vector<RowDemand> demands;
  std::vector<RowResult> results;
  resource::StepRows rows;
  int own_slot = 0;            // of the two of this component
  PlanSlots* slots = nullptr;  // where own_slot was taken
  std::optional<int> bucket;   // leased; nothing: eager, or by regions
  bool is_static = false;      // inputs lie in the slot's static memory
  // Of each region: the graph that was leased, or null.
  std::vector<CapturedGraph*> regions;
  int num_region_replays = 0;
  // Items in the outputs of a row that has no results of its own, though it has its place; null: it has none.
  const std::vector<SlotResult>* results_of_places = nullptr;
  const Borders* borders = nullptr;
  std::byte* border_memory = nullptr;
  int recorded_region = -1;  // run_region records this one
  std::unique_ptr<CapturedGraph> recorded;
  std::vector<TensorView> input_views, output_views;
  std::vector<std::vector<std::int32_t>> input_starts, output_starts;
  OutputLayout layout;
  std::array<std::shared_ptr<BufferPool::Block>, kNumGroups> output_blocks;  // a group without bytes has none
  std::vector<std::shared_ptr<BufferPool::Block>> held;                      // gathered inputs
  std::deque<Value> recomputed;                                              // ids of texts
  Arena arena;
  int next_slice = 0;
  bool launched = false;  // whole, with its read-back
  bool waited = false;
  bool has_outputs = false;  // results hold the values on the device
  struct HostPart {          // a value of results that the host gets too
    int row = 0, output = 0, index = 0;
  };
  std::vector<HostPart> host_parts;
  std::optional<Error> failure;

 private:
  Status record_region(const std::function<Status()>& part);
  std::span<const std::int32_t> of_rows(const std::vector<std::int32_t>& offsets) const {
    return std::span(offsets).first(std::min(offsets.size(), inputs.size() + 1));
  }
  OpContext context_;
  ResourceSet& resources_;
};

}  // namespace mstar::engine
