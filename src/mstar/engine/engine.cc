#include "mstar/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "mstar/base/check.h"

namespace mstar::engine {

std::int64_t RowInputs::flag(const std::string& name, std::int64_t fallback) const {
  if (!flags) return fallback;
  const auto it = flags->find(name);
  return it == flags->end() ? fallback : it->second;
}

const Value* RowInputs::value(decl::PortRef port) const {
  for (std::size_t i = 0; i < run->inputs.size(); ++i)
    if (run->inputs[i] == port) return i < ports.size() && !ports[i].empty() ? &ports[i].front() : nullptr;
  return nullptr;
}

Result<ResourceSet> ResourceSet::build(const decl::Decl& decl, std::span<const decl::ComponentRef> components,
                                       const resource::PoolLimits& limits, Device& device) {
  ResourceSet set;
  set.by_ref_.resize(decl.resources().size());
  set.num_plan_slots_ = resource::kNumSlots * static_cast<int>(components.size());
  resource::PoolLimits sized = limits;
  sized.num_plan_slots = std::max(set.num_plan_slots_, 1);
  for (const decl::ComponentRef component : components) {
    if (decl.at(component).on_host()) continue;
    for (const decl::ResourceRef ref : decl.at(component).device().uses) {
      if (set.by_ref_[ref.value]) continue;
      MSTAR_TRY_ASSIGN(set.by_ref_[ref.value], resource::make_resource(decl.at(ref), sized, device));
    }
  }
  return set;
}

int ResourceSet::claim_plan_slots() {
  MSTAR_CHECK(claimed_plan_slots_ < num_plan_slots_, "more components than the resources were built for");
  return std::exchange(claimed_plan_slots_, claimed_plan_slots_ + resource::kNumSlots);
}

resource::Resource* ResourceSet::at(decl::ResourceRef ref) const { return by_ref_[ref.value].get(); }

Status ResourceSet::add_request(RequestId request, const decl::RequestParams& params) {
  for (const auto& each : by_ref_) {
    if (!each) continue;
    if (Status added = each->add_request(request, params); !added) {
      remove_request(request);
      return added;
    }
  }
  return ok_status();
}

void ResourceSet::remove_request(RequestId request) {
  for (const auto& each : by_ref_)
    if (each) each->remove_request(request);
}

std::vector<resource::Usage> ResourceSet::usage() const {
  std::vector<resource::Usage> out;
  for (const auto& each : by_ref_)
    if (each) out.push_back(each->usage());
  return out;
}

class Step final : public Forward {
 public:
  Step(OpContext context, ResourceSet& resources) : context_(context), resources_(resources) {}

  OpContext& ops() override { return context_; }
  int num_rows() const override { return static_cast<int>(inputs.size()); }
  const RowInputs& row(int r) const override { return inputs[r]; }
  const RowDemand& demand(int r) const override { return demands[r]; }
  TensorView input(int slot) const override { return input_views[slot]; }
  std::span<const std::int32_t> input_offsets(int slot) const override { return input_starts[slot]; }
  TensorView output(int slot) const override { return output_views[slot]; }
  std::span<const std::int32_t> output_offsets(int slot) const override { return output_starts[slot]; }
  resource::Resource& resource(decl::ResourceRef ref) const override {
    resource::Resource* found = resources_.at(ref);
    MSTAR_CHECK(found != nullptr, "a component reads a resource that it did not declare in `uses`");
    return *found;
  }
  int plan_slot() const override { return rows.slot; }
  std::span<const std::int32_t> token_offsets() const override { return rows.token_offsets; }
  void stop_loop(int r, std::string_view loop) override { results[r].stopped_loops.emplace_back(loop); }
  void fail_row(int r, Error error) override { results[r].error = std::move(error); }

  std::vector<RowInputs> inputs;
  std::vector<RowDemand> demands;
  std::vector<RowResult> results;
  resource::StepRows rows;
  std::vector<TensorView> input_views, output_views;
  std::vector<std::vector<std::int32_t>> input_starts, output_starts;
  std::vector<std::shared_ptr<BufferPool::Block>> output_blocks;
  std::vector<std::shared_ptr<BufferPool::Block>> held;  // gathered inputs
  Arena arena;
  int next_slice = 0;
  std::optional<Error> failure;

  // The arena moves with the step; the context must refer to the step's own.
  static StepPtr make(Device& device, void* memory, std::size_t bytes, ThreadPool* pool, ResourceSet& resources) {
    Arena placeholder;
    StepPtr step(new Step(OpContext{device, device.default_stream(), placeholder, pool}, resources));
    step->arena = Arena(memory, bytes);
    step->rebind(device, pool);
    return step;
  }

 private:
  void rebind(Device& device, ThreadPool* pool) {
    std::destroy_at(&context_);
    std::construct_at(&context_, OpContext{device, device.default_stream(), arena, pool});
  }
  OpContext context_;
  ResourceSet& resources_;
};

void StepDeleter::operator()(Step* step) const { delete step; }

Engine::Engine(const decl::Decl& decl, decl::ComponentRef component, Options options, ResourceSet& resources, Device& device)
    : decl_(decl),
      spec_(decl.at(component).device()),
      component_(component),
      options_(std::move(options)),
      resources_(resources),
      device_(device) {}

Engine::~Engine() {
  if (arena_memory_) device_.release(arena_memory_);
}

Result<std::unique_ptr<Engine>> Engine::create(const decl::Decl& decl, decl::ComponentRef component, Options options,
                                               ResourceSet& resources, weights::WeightMap& weights, Device& device) {
  std::unique_ptr<Engine> engine(new Engine(decl, component, std::move(options), resources, device));
  engine->first_plan_slot_ = resources.claim_plan_slots();
  if (!engine->spec_.build) return bad_model("component '" + engine->spec_.name + "' has nothing to run");
  BuildContext context{.decl = decl,
                       .weights = weights,
                       .device = device,
                       .pool = engine->options_.pool,
                       .limits = engine->options_.limits,
                       .compute = engine->spec_.compute};
  MSTAR_TRY_ASSIGN(engine->body_, engine->spec_.build(context));
  MSTAR_TRY_ASSIGN(engine->labels_, Labels::of(decl, component));
  engine->input_slots_ = engine->body_->input_slots();
  engine->output_slots_ = engine->body_->output_slots();
  const auto& limits = engine->options_.limits;
  engine->arena_bytes_ = engine->body_->workspace_bytes(limits.max_rows, limits.max_tokens) + 4096;
  MSTAR_TRY_ASSIGN(engine->arena_memory_, device.allocate(engine->arena_bytes_));
  return engine;
}

// Forks come first, for the row may run under the label that they make. A row that then has to wait forks again: until
// it has run, nothing else may touch what it forks.
Result<resource::Admit> Engine::admit(const RowInputs& row, const resource::StepRow& claim) {
  MSTAR_TRY(labels_.fork(resources_, row.request, row.run->forks_before, device_.default_stream()));
  std::size_t granted = 0;
  for (; granted < spec_.uses.size(); ++granted) {
    auto outcome = resources_.at(spec_.uses[granted])->admit(claim);
    if (outcome && *outcome == resource::Admit::ok) continue;
    while (granted-- > 0) resources_.at(spec_.uses[granted])->withdraw(claim);
    return outcome;
  }
  return resource::Admit::ok;
}

Engine::Prepared Engine::prepare(std::vector<RowInputs> rows) {
  Prepared out;
  auto step = Step::make(device_, arena_memory_, arena_bytes_, options_.pool, resources_);
  step->rows.slot = first_plan_slot_ + next_plan_slot_;
  for (RowInputs& row : rows) {
    auto demand = declare(row);
    if (!demand) {
      out.failed.push_back({row.request, std::move(demand.error()), {}, {}, row.tag});
      continue;
    }
    const resource::StepRow claim{row.request, demand->resources};
    if (claim.demand.tokens > options_.limits.max_tokens) {
      out.failed.push_back({row.request,
                            invalid_request("an input of " + std::to_string(claim.demand.tokens) + " tokens is longer than a step of '" +
                                            spec_.name + "' (" + std::to_string(options_.limits.max_tokens) + ")"),
                            {}, {}, row.tag});
      continue;
    }
    const bool full = step->num_rows() == options_.limits.max_rows ||
                      step->rows.num_tokens() + claim.demand.tokens > options_.limits.max_tokens;
    if (full && step->num_rows() > 0) {
      out.waiting.push_back(std::move(row));
      continue;
    }
    auto admitted = admit(row, claim);
    if (!admitted) {
      out.failed.push_back({row.request, std::move(admitted.error()), {}, {}, row.tag});
    } else if (*admitted == resource::Admit::wait) {
      out.waiting.push_back(std::move(row));
    } else {
      step->rows.add(claim);
      step->results.push_back({row.request, std::nullopt, std::vector<Values>(row.run->outputs.size()), {}, row.tag});
      step->inputs.push_back(std::move(row));
      step->demands.push_back(std::move(*demand));
      // Sources point into the row's ports, which moved with it: the vectors keep their heap storage, so they stay valid.
    }
  }
  if (step->num_rows() == 0) return out;
  next_plan_slot_ = (next_plan_slot_ + 1) % resource::kNumSlots;
  for (const decl::ResourceRef ref : spec_.uses)
    if (Status planned = resources_.at(ref)->plan(step->rows, step->ops().stream); !planned) step->failure = planned.error();
  if (Status gathered = gather(*step); !gathered && !step->failure) step->failure = gathered.error();
  if (Status allocated = allocate_outputs(*step); !allocated && !step->failure) step->failure = allocated.error();
  out.step = std::move(step);
  return out;
}

namespace {

// A value as bytes that the device can read in place, or that must be uploaded.
struct Source {
  const void* pointer = nullptr;
  std::vector<std::int64_t> dims;
  DType dtype = DType::f32;
  bool on_device = false;
};

Source source_of(const Value& value) {
  if (value.device) {
    if (const auto* row = dynamic_cast<const RowBuffer*>(value.device.get()))
      return {row->view().pointer, row->dims(), row->dtype(), true};
  }
  return {value.host.bytes().data(), value.host.dims(), value.host.dtype(), false};
}

Result<std::int64_t> count_items(const SlotSpec& spec, const Source& source, const std::string& component) {
  const std::size_t rank = spec.item_dims.size();
  const bool listed = source.dims.size() == rank + 1;
  const bool single = source.dims.size() == rank;
  const auto tail = source.dims.end() - static_cast<std::ptrdiff_t>(std::min(rank, source.dims.size()));
  if (source.dtype != spec.dtype || !(listed || single) || !std::equal(spec.item_dims.begin(), spec.item_dims.end(), tail)) {
    std::string got(dtype_name(source.dtype));
    for (const auto d : source.dims) got += " " + std::to_string(d);
    return internal_error("component '" + component + "': slot '" + spec.name + "' cannot take a value of " + got);
  }
  return listed ? source.dims[0] : 1;
}

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

}  // namespace

// A value that no slot can take is this row's fault, so it is found here and not in gather().
Result<RowDemand> Engine::declare(const RowInputs& row) {
  MSTAR_TRY_ASSIGN(RowDemand demand, body_->declare(row));
  for (const SlotSource& source : demand.sources) {
    const SlotSpec& slot = input_slots_[source.slot];
    if (!source.value) return internal_error("component '" + spec_.name + "' got no value for '" + slot.name + "'");
    MSTAR_TRY(count_items(slot, source_of(*source.value), spec_.name));
  }
  demand.resources.label = labels_.index(*row.run);
  return demand;
}

Status Engine::gather(Step& step) {
  step.input_views.resize(input_slots_.size());
  step.input_starts.resize(input_slots_.size());
  for (std::size_t s = 0; s < input_slots_.size(); ++s) {
    const SlotSpec& spec = input_slots_[s];
    std::vector<Source> sources;
    auto& starts = step.input_starts[s];
    starts = {0};
    for (const RowDemand& demand : step.demands) {
      std::int64_t items = 0;
      for (const SlotSource& each : demand.sources) {
        if (each.slot != static_cast<int>(s)) continue;
        sources.push_back(source_of(*each.value));
        MSTAR_TRY_ASSIGN(const std::int64_t more, count_items(spec, sources.back(), spec_.name));
        items += more;
      }
      starts.push_back(starts.back() + static_cast<std::int32_t>(items));
    }
    const std::size_t bytes_each = item_bytes(spec);
    if (sources.size() == 1 && (sources[0].on_device || device_.id().backend == Backend::cpu)) {
      step.input_views[s] = slot_view(spec, const_cast<void*>(sources[0].pointer), starts.back(), device_.id());
      continue;
    }
    MSTAR_TRY_ASSIGN(auto block, options_.buffers->take(static_cast<std::size_t>(starts.back()) * bytes_each));
    auto* to = static_cast<std::byte*>(block->pointer);
    step.input_views[s] = slot_view(spec, to, starts.back(), device_.id());
    for (const Source& source : sources) {
      std::size_t bytes = dtype_bytes(spec.dtype);
      for (const auto d : source.dims) bytes *= static_cast<std::size_t>(d);
      if (source.on_device) {
        device_.copy_within(to, source.pointer, bytes, step.ops().stream);
      } else {
        device_.copy_to_device(to, source.pointer, bytes, step.ops().stream);
      }
      to += bytes;
    }
    step.held.push_back(std::move(block));
  }
  return ok_status();
}

Status Engine::allocate_outputs(Step& step) {
  step.output_views.resize(output_slots_.size());
  step.output_starts.resize(output_slots_.size());
  for (std::size_t s = 0; s < output_slots_.size(); ++s) {
    auto& starts = step.output_starts[s];
    starts = {0};
    for (const RowDemand& demand : step.demands) {
      std::int32_t items = 0;
      for (const SlotResult& each : demand.results)
        if (each.slot == static_cast<int>(s)) items += each.items;
      starts.push_back(starts.back() + items);
    }
    const std::int64_t before = options_.buffers->num_allocations();
    MSTAR_TRY_ASSIGN(auto block, options_.buffers->take(static_cast<std::size_t>(starts.back()) * item_bytes(output_slots_[s])));
    counters_.num_allocations += options_.buffers->num_allocations() - before;
    step.output_views[s] = slot_view(output_slots_[s], block->pointer, starts.back(), device_.id());
    step.output_blocks.push_back(std::move(block));
  }
  return ok_status();
}

Result<bool> Engine::advance(Step& step) {
  if (step.failure) return true;
  if (step.next_slice == 0) {
    ++counters_.num_steps;
    ++counters_.num_eager;
    counters_.num_rows += step.num_rows();
    counters_.num_tokens += step.rows.num_tokens();
  }
  if (Status ran = body_->forward(step, step.next_slice); !ran) {
    step.failure = ran.error();
    return true;
  }
  if (++step.next_slice < body_->num_slices()) return false;
  fork_after(step);
  return true;
}

void Engine::fork_after(Step& step) {
  for (int r = 0; r < step.num_rows(); ++r) {
    const RowInputs& row = step.inputs[static_cast<std::size_t>(r)];
    Status forked = labels_.fork(resources_, row.request, row.run->forks_after, step.ops().stream);
    if (!forked) step.fail_row(r, std::move(forked.error()));
  }
}

std::vector<RowResult> Engine::finish(StepPtr step) {
  const Stream stream = step->ops().stream;
  for (int r = 0; r < step->num_rows(); ++r) {
    RowResult& result = step->results[r];
    if (step->failure && !result.error) result.error = *step->failure;
    for (const decl::ResourceRef ref : spec_.uses) {
      if (result.error) {
        resources_.at(ref)->rollback(step->rows.rows[r]);
      } else {
        resources_.at(ref)->commit(step->rows.rows[r]);
      }
    }
    if (result.error) continue;
    std::vector<std::int32_t> cursor(output_slots_.size());
    for (const SlotResult& each : step->demands[r].results) {
      const std::int32_t begin = step->output_starts[each.slot][r] + cursor[each.slot];
      cursor[each.slot] += each.items;
      if (each.output < 0) continue;
      TensorView view = step->output_views[each.slot].slice(begin, begin + each.items);
      if (each.drop_items_axis) view = view.at(0);
      Value value(std::make_shared<RowBuffer>(step->output_blocks[each.slot], view));
      if (output_slots_[each.slot].to_host) {
        std::vector<std::byte> bytes(view.bytes());
        device_.copy_to_host(bytes.data(), view.pointer, bytes.size(), stream);
        value.host = HostValue(view.dtype, {view.shape.dims().begin(), view.shape.dims().end()}, std::move(bytes));
      }
      result.outputs[each.output].push_back(std::move(value));
    }
  }
  device_.synchronize(stream);
  return std::move(step->results);
}

}  // namespace mstar::engine
