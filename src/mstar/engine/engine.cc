#include "mstar/engine/engine.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/base/log.h"
#include "mstar/engine/step.h"

namespace mstar::engine {

std::int64_t RowInputs::flag(const std::string& name, std::int64_t fallback) const {
  if (!flags) return fallback;
  const auto it = flags->find(name);
  return it == flags->end() ? fallback : it->second;
}

const Value* RowInputs::value(decl::PortRef port) const {
  if (!run) return nullptr;
  for (std::size_t i = 0; i < run->inputs.size(); ++i)
    if (run->inputs[i] == port) return i < ports.size() && !ports[i].empty() ? &ports[i].front() : nullptr;
  return nullptr;
}

void StepDeleter::operator()(Step* step) const { delete step; }

Engine::Engine(const decl::Decl& decl, decl::ComponentRef component, Options options, ResourceSet& resources,
               Device& device)
    : decl_(decl),
      spec_(decl.at(component).device()),
      component_(component),
      options_(std::move(options)),
      resources_(resources),
      device_(device) {}

Engine::~Engine() {
  // Graphs and copies of steps that nobody finished may still run.
  if (slots_.num_taken() == 0) return;
  for (const Stream stream : {device_.default_stream(), device_.upload_stream(), device_.readback_stream()})
    device_.synchronize(stream);
}

Result<std::unique_ptr<Engine>> Engine::create(const decl::Decl& decl, decl::ComponentRef component, Options options,
                                               ResourceSet& resources, weights::WeightMap& weights, Device& device) {
  std::unique_ptr<Engine> engine(new Engine(decl, component, std::move(options), resources, device));
  engine->first_plan_slot_ = resources.claim_plan_slots();
  const auto& limits = engine->options_.limits;
  if (!engine->spec_.build) return bad_model("component '" + engine->spec_.name + "' has nothing to run");
  if (const int shards = engine->mesh().size().num_ranks();
      shards != (engine->spec_.tensor_parallel ? limits.head_shards : 1))
    return internal_error("component '" + engine->spec_.name + "' runs on " + std::to_string(shards) +
                          " ranks, its resources are cut for " + std::to_string(limits.head_shards));
  BuildContext context{.decl = decl,
                       .component = decl.at(component).name(),
                       .weights = weights,
                       .device = device,
                       .pool = engine->options_.pool,
                       .limits = engine->options_.limits,
                       .compute = engine->spec_.compute,
                       .mesh = engine->mesh()};
  MSTAR_TRY_ASSIGN(engine->body_, engine->spec_.build(context));
  MSTAR_TRY_ASSIGN(engine->labels_, Labels::of(decl, component));
  engine->input_slots_ = engine->body_->input_slots();
  engine->output_slots_ = engine->body_->output_slots();
  if (engine->spec_.chunked_prefill) MSTAR_TRY(engine->find_ids_slot());
  MSTAR_TRY(engine->find_regions());
  for (SlotMemory& memory : engine->memory_) {
    memory.upload = PinnedBlock(device);
    memory.readback = PinnedBlock(device);
    for (std::unique_ptr<Event>* const event : {&memory.done, &memory.uploaded, &memory.ran}) {
      MSTAR_TRY_ASSIGN(*event, device.make_event());
    }
  }
  engine->arena_ = engine->options_.arena;
  const bool own_arena = engine->arena_ == nullptr;
  if (own_arena) engine->arena_ = std::make_shared<ActivationArena>(device);
  engine->arena_->claim(engine->borders_.bytes() + engine->body_->workspace_bytes(limits.max_rows, limits.max_tokens) +
                        4096);
  if (own_arena) MSTAR_TRY(engine->arena_->seal());
  return engine;
}

bool Engine::may_run_ahead() const {
  return device_.is_asynchronous() && spec_.run_ahead &&
         std::all_of(spec_.uses.begin(), spec_.uses.end(),
                     [&](const decl::ResourceRef ref) { return resources_.at(ref)->can_roll_back(); });
}

// A value that no slot can take is this row's fault, so it is found here and not in gather().
Result<RowDemand> Engine::declare(const RowInputs& row) {
  const auto ask = [&]() -> Result<RowDemand> {
    try {
      return body_->declare(row);
    } catch (const std::exception& error) {
      return internal_error(std::string("a row failed: ") + error.what());
    }
  };
  MSTAR_TRY_ASSIGN(RowDemand demand, ask());
  for (SlotSource& source : demand.sources) {
    const SlotSpec& slot = input_slots_[static_cast<std::size_t>(source.slot)];
    if (!source.value) return internal_error("component '" + spec_.name + "' got no value for '" + slot.name + "'");
    const auto items = num_items(slot, *source.value);
    if (!items)
      return internal_error("component '" + spec_.name + "': slot '" + slot.name +
                            "' cannot take the value that it was given");
    source.items = *items;
  }
  demand.resources.label = labels_.index(*row.run);
  return demand;
}

// Forks come first, for the row may run under the label that they make. A row that then has to wait forks again: until
// it has run, nothing else may touch what it forks.
Result<resource::Admit> Engine::admit(const RowInputs& row, const resource::StepRow& claim) {
  if (!row.progress.begun && !row.run->forks_before.empty())
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

void Engine::add_admitted(Step& step, RowInputs row, RowDemand demand, const resource::StepRow& claim) {
  step.rows.add(claim);
  step.results.push_back({row.request, std::nullopt, {}, {}, row.tag, !claim.demand.ends, row.progress});
  step.inputs.push_back(std::move(row));
  // Sources point into the row's ports, which moved with it: the vectors keep their heap storage, so they stay valid.
  step.demands.push_back(std::move(demand));
}

void Engine::admit_rows(Step& step, std::vector<RowInputs> rows, Prepared& out) {
  for (RowInputs& row : rows) {
    auto demand = declare(row);
    if (!demand) {
      out.failed.push_back({row.request, std::move(demand.error()), {}, {}, row.tag});
      continue;
    }
    const resource::StepRow claim{row.request, demand->resources, row.ahead};
    const bool is_final_act = claim.demand.restart || claim.demand.context_tokens > 0 ||
                              !row.run->forks_before.empty() || !row.run->forks_after.empty() || !demand->may_run_ahead;
    if (row.ahead && is_final_act) {
      out.waiting.push_back(std::move(row));
      continue;
    }
    if (claim.demand.tokens > options_.limits.max_tokens) {
      out.failed.push_back(
          {row.request,
           invalid_request("an input of " + std::to_string(claim.demand.tokens) + " tokens is longer than a step of '" +
                           spec_.name + "' (" + std::to_string(options_.limits.max_tokens) + ")"),
           {},
           {},
           row.tag});
      continue;
    }
    const bool full = step.num_rows() == options_.limits.max_rows ||
                      step.rows.num_tokens() + claim.demand.tokens > options_.limits.max_tokens;
    if (full && step.num_rows() > 0) {
      out.waiting.push_back(std::move(row));
      continue;
    }
    auto admitted = admit(row, claim);
    if (!admitted) {
      out.failed.push_back({row.request, std::move(admitted.error()), {}, {}, row.tag});
    } else if (*admitted == resource::Admit::wait) {
      out.waiting.push_back(std::move(row));
    } else {
      add_admitted(step, std::move(row), std::move(*demand), claim);
    }
  }
}

MeshEnds Engine::mesh() const {
  const MeshEnds& all = options_.mesh;
  if (!spec_.tensor_parallel) return {};
  if (spec_.sequence_parallel) return all;
  if (spec_.shard_over_sp) return {all.all};
  return {all.all, all.tensor, nullptr};
}

Engine::Prepared Engine::prepare(std::vector<RowInputs> rows) {
  Prepared out;
  const std::optional<int> slot = slots_.take();
  if (!slot) {
    out.waiting = std::move(rows);
    return out;
  }
  StepPtr step(new Step(device_, step_arena(), options_.pool, resources_, body_->activations(), mesh()));
  step->own_slot = *slot;
  step->slots = &slots_;
  step->borders = &borders_;
  step->border_memory = arena_->front();
  step->regions.resize(regions_.size());
  step->rows.slot = first_plan_slot_ + *slot;
  step->reserve(rows.size());
  admit_all(*step, std::move(rows), out);
  if (step->num_rows() == 0) return out;
  const std::int64_t before = device_.num_allocations();
  try {
    plan(*step);
    bind(*step);
  } catch (...) {
    // Its copies end before the slot is another step's.
    device_.synchronize(device_.upload_stream());
    device_.synchronize(device_.default_stream());
    throw;
  }
  counters_.num_allocations += device_.num_allocations() - before;
  out.step = std::move(step);
  return out;
}

void Engine::admit_all(Step& step, std::vector<RowInputs> rows, Prepared& out) {
  const PhaseScope scope(options_.profile, Phase::admit);
  if (sequences_) {
    admit_sequences(step, std::move(rows), out);
  } else {
    admit_rows(step, std::move(rows), out);
  }
}

void Engine::plan(Step& step) {
  const PhaseScope scope(options_.profile, Phase::plan);
  if (!lease_whole(step)) lease_regions(step);
  body_->before_plan(step);
  for (const decl::ResourceRef ref : spec_.uses)
    if (Status planned = resources_.at(ref)->plan(step.rows, device_.upload_stream()); !planned)
      step.failure = planned.error();
}

void Engine::bind(Step& step) {
  const PhaseScope scope(options_.profile, Phase::gather);
  if (Status gathered = gather(step); !gathered && !step.failure) step.failure = gathered.error();
  join_uploads(step);
  if (Status allocated = allocate_outputs(step); !allocated && !step.failure) step.failure = allocated.error();
}

Engine::StepShape Engine::shape(const Step& step) const {
  const int rows = step.num_rows();
  const auto end = static_cast<std::size_t>(rows);
  int tokens = step.rows.token_offsets[end];
  const bool has_prompts = tokens > rows;
  if (tokens == 0 && !step.input_starts.empty() && step.input_starts.front().size() > end)
    tokens = step.input_starts.front()[end];
  if (step.bucket && !step.rows.packed) return {StepKind::replay, rows, tokens};
  return {has_prompts ? StepKind::prompt : StepKind::eager, rows, tokens};
}

Result<bool> Engine::advance(Step& step) {
  if (step.failure) return true;
  if (step.next_slice == 0) {
    ++counters_.num_steps;
    counters_.num_rows += step.num_rows();
    counters_.num_ahead_rows +=
        std::count_if(step.inputs.begin(), step.inputs.end(), [](const RowInputs& row) { return row.ahead; });
    counters_.num_tokens += step.rows.token_offsets[static_cast<std::size_t>(step.num_rows())];
    counters_.num_padding_rows += step.rows.num_rows() - step.num_rows();
  }
  const bool last = step.bucket || step.next_slice + 1 == body_->num_slices();
  const MeshEnds group = mesh();
  Status ran;
  try {
    const PhaseScope scope(options_.profile, step.bucket ? Phase::replay : Phase::forward);
    ran = group.failure();  // a graph would not ask
    if (ran) ran = step.bucket ? replay(step) : body_->forward(step, step.next_slice);
  } catch (const std::exception& error) {
    log_error("component '{}': a step failed: {}", spec_.name, error.what());
    ran = internal_error(std::string("a step failed: ") + error.what());
  }
  if (last || !ran) {
    counters_.num_region_replays += step.num_region_replays;
    ++(step.bucket ? counters_.num_replays : step.num_region_replays ? counters_.num_piecewise : counters_.num_eager);
  }
  if (ran && last) ran = read_back(step);
  if (!ran) {
    step.failure = ran.error();
    // The other ranks wait for sums that this one does not make.
    if (!group.alone())
      group.abort("component '" + spec_.name + "' failed on rank " + std::to_string(group.all->rank()) + ": " +
                  ran.error().message);
    return true;
  }
  ++step.next_slice;
  step.launched = last;
  if (last) fork_after(step);
  return last;
}

void Engine::fork_after(Step& step) {
  for (int r = 0; r < step.num_rows(); ++r) {
    const RowInputs& row = step.inputs[static_cast<std::size_t>(r)];
    if (!step.row_ends(r) || row.run->forks_after.empty()) continue;
    Status forked = labels_.fork(resources_, row.request, row.run->forks_after, step.ops().stream);
    if (!forked) step.fail_row(r, std::move(forked.error()));
  }
}

void Engine::drop(Step& step, std::uint32_t tag) {
  for (RowResult& result : step.results)
    if (result.tag == tag && !result.error) {
      result.error = cancelled("the request ended before this step");
      ++counters_.num_dropped_rows;
    }
}

bool Engine::is_running(const Step& step) const {
  if (on_cpu() || !step.launched || step.waited) return false;
  return !memory_[static_cast<std::size_t>(step.own_slot)].done->reached();
}

void Engine::wait(Step& step) {
  if (step.waited) return;
  step.waited = true;
  if (on_cpu()) return;
  const PhaseScope scope(options_.profile, Phase::wait);
  ++counters_.num_host_syncs;
  if (step.launched) {
    memory_[static_cast<std::size_t>(step.own_slot)].done->wait();
  } else {
    device_.synchronize(step.ops().stream);  // half a step may be on its way
  }
  // Sums that were cut off are nobody's.
  if (!step.failure)
    if (const Status whole = mesh().failure(); !whole) fail(step, whole.error());
}

const std::vector<RowResult>& Engine::promised(Step& step) {
  make_outputs(step);
  return step.results;
}

void Engine::commit(Step& step) {
  const PhaseScope scope(options_.profile, Phase::commit);
  for (int r = 0; r < step.num_rows(); ++r) {
    RowResult& result = step.results[static_cast<std::size_t>(r)];
    int snapshot = -1;
    for (const decl::ResourceRef ref : spec_.uses) {
      if (!result.error && sequences_ && resources_.at(ref) == sequences_) {
        snapshot = commit_part(step, r);
      } else if (result.error) {
        resources_.at(ref)->rollback(step.rows.rows[static_cast<std::size_t>(r)]);
      } else {
        resources_.at(ref)->commit(step.rows.rows[static_cast<std::size_t>(r)]);
      }
    }
    if (result.error) result.outputs.clear();
    if (snapshot >= 0) save_states(step, r, snapshot);
  }
}

std::vector<RowResult> Engine::finish(StepPtr step) {
  wait(*step);
  const PhaseScope scope(options_.profile, Phase::collect);
  make_outputs(*step);
  commit(*step);
  bring_to_host(*step);
  for (int r = 0; r < step->num_rows(); ++r)
    if (const RowResult& result = step->results[static_cast<std::size_t>(r)]; !result.error && step->row_ends(r))
      body_->after_row(*step, r, result.outputs);
  return std::move(step->results);
}

}  // namespace mstar::engine
