// Components with chunked_prefill: which part of each row's sequence a step runs.
#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "mstar/engine/engine.h"
#include "mstar/engine/step.h"
#include "mstar/engine/token_budget.h"

namespace mstar::engine {

struct Engine::Candidate {
  RowInputs row;
  RowDemand demand;  // of the row whole
  resource::OpenRow open;
  int num_left() const { return open.num_missing + demand.resources.tokens - row.progress.done; }
  TokenWish wish() const {
    return {open.begin, open.cut_at ? std::min(num_left(), open.cut_at - open.begin) : num_left()};
  }
};

Status Engine::find_ids_slot() {
  for (const decl::ResourceRef ref : spec_.uses) {
    if (std::holds_alternative<decl::RecurrentState>(decl_.at(ref)))
      states_.push_back(static_cast<resource::StateSlots*>(resources_.at(ref)));
    if (!std::holds_alternative<decl::PagedKv>(decl_.at(ref))) continue;
    if (sequences_) return bad_model("component '" + spec_.name + "': chunked_prefill with two paged KV");
    sequences_ = static_cast<resource::PagedKvPool*>(resources_.at(ref));
  }
  if (!sequences_) return bad_model("component '" + spec_.name + "': chunked_prefill without a paged KV");
  for (std::size_t s = 0; s < input_slots_.size(); ++s) {
    const SlotSpec& slot = input_slots_[s];
    if (slot.per_token && slot.dtype == DType::i32 && slot.item_dims.empty()) ids_slot_ = static_cast<int>(s);
  }
  if (ids_slot_ < 0)
    return bad_model("component '" + spec_.name + "': chunked_prefill needs an input slot for the ids of each token");
  if (options_.limits.max_tokens < sequences_->page_tokens())
    return bad_model("component '" + spec_.name + "': a step of " + std::to_string(options_.limits.max_tokens) +
                     " tokens holds no page of " + std::to_string(sequences_->page_tokens()));
  return ok_status();
}

namespace {

// Ids of a source where the host can read them; empty where it cannot.
std::span<const std::int32_t> ids_on_host(const SlotSource& source, bool on_cpu) {
  const Value& value = *source.value;
  std::span<const std::int32_t> all = value.host.as<std::int32_t>();
  if (const auto* const buffer = dynamic_cast<const RowBuffer*>(value.device.get()); buffer && all.empty()) {
    all = buffer->read().as<std::int32_t>();
    if (all.empty() && on_cpu)
      all = {static_cast<const std::int32_t*>(buffer->view().pointer),
             static_cast<std::size_t>(buffer->view().shape.num_elements())};
  }
  if (all.size() < static_cast<std::size_t>(source.begin + source.items)) return {};
  return all.subspan(static_cast<std::size_t>(source.begin), static_cast<std::size_t>(source.items));
}

}  // namespace

// False: the row waits.
Result<bool> Engine::open(Candidate& candidate) {
  RowInputs& row = candidate.row;
  Progress& progress = row.progress;
  MSTAR_TRY_ASSIGN(candidate.demand, declare(row));
  const resource::RowDemand& demand = candidate.demand.resources;
  if (demand.tokens < 1) return internal_error("a row of '" + spec_.name + "' has no tokens");
  const bool is_final_act = demand.restart || demand.context_tokens > 0 || !row.run->forks_before.empty() ||
                            !row.run->forks_after.empty() || !candidate.demand.may_run_ahead;
  if (row.ahead && is_final_act) return false;
  if (!progress.begun)
    MSTAR_TRY(labels_.fork(resources_, row.request, row.run->forks_before, device_.default_stream()));
  std::vector<std::int64_t> items(input_slots_.size());
  std::span<const std::int32_t> ids;
  bool tells_ids = true;
  for (const SlotSource& source : candidate.demand.sources) {
    const auto slot = static_cast<std::size_t>(source.slot);
    if (!input_slots_[slot].per_token) continue;
    tells_ids &= source.slot == ids_slot_ && items[slot] == 0;
    items[slot] += source.items;
    if (tells_ids) ids = ids_on_host(source, on_cpu());
  }
  for (std::size_t s = 0; s < items.size(); ++s)
    if (items[s] > 0 && items[s] != demand.tokens)
      return internal_error("component '" + spec_.name + "': slot '" + input_slots_[s].name + "' got " +
                            std::to_string(items[s]) + " items for " + std::to_string(demand.tokens) + " tokens");
  if (!tells_ids || ids.empty()) {
    ids = {};
  } else {
    ids = ids.subspan(static_cast<std::size_t>(progress.done));
  }
  const bool restart = demand.restart && !progress.begun;
  const int length = restart ? 0 : sequences_->text_length(row.request, demand.label);
  MSTAR_TRY_ASSIGN(candidate.open, sequences_->open({row.request, demand.label, demand.tokens - progress.done, ids,
                                                     restart, row.ahead}));
  if (candidate.open.begun && !std::exchange(progress.begun, true)) {
    progress.label = demand.label;
    progress.label_start = length;
  }
  progress.done += candidate.open.num_found;
  if (candidate.open.snapshot >= 0)
    for (resource::StateSlots* const each : states_)
      each->restore(row.request, demand.label, candidate.open.snapshot, device_.default_stream());
  return candidate.open.ready;
}

void Engine::admit_sequences(Step& step, std::vector<RowInputs> rows, Prepared& out) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const RowInputs& a, const RowInputs& b) { return a.request < b.request; });
  sequences_->begin_round();
  std::vector<Candidate> candidates;
  std::vector<TokenWish> wishes;
  for (RowInputs& row : rows) {
    Candidate candidate{.row = std::move(row), .demand = {}, .open = {}};
    auto ready = open(candidate);
    if (ready && *ready) {
      wishes.push_back(candidate.wish());
      candidates.push_back(std::move(candidate));
      continue;
    }
    sequences_->close(candidate.row.request);
    if (ready) {
      out.waiting.push_back(std::move(candidate.row));
    } else {
      out.failed.push_back({candidate.row.request, std::move(ready.error()), {}, {}, candidate.row.tag, false, {}});
    }
  }
  const auto& limits = options_.limits;
  const auto num_single =
      std::count_if(wishes.begin(), wishes.end(), [](const TokenWish& each) { return each.tokens == 1; });
  const int tokens = tokens_of_step(limits.max_tokens, static_cast<int>(num_single));
  const StepBudget budget{.tokens = tokens,
                          .rows = limits.max_rows,
                          .grain = sequences_->page_tokens(),
                          .grid = sequences_->snapshot_grid(),
                          .least_share = tokens / 2};
  const std::vector<int> shares = share_tokens(wishes, budget);
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (shares[i] > 0) admit_part(step, candidates[i], shares[i], out);
  // What rows did not take that must wait after all is for those that got nothing, and there is always somebody.
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (shares[i] > 0) continue;
    const int left = step.num_rows() < limits.max_rows ? tokens - step.rows.num_tokens() : 0;
    const auto part = step.num_rows() > 0 ? late_part : largest_part;
    admit_part(step, candidates[i], part(wishes[i], left, budget), out);
  }
}

void Engine::admit_part(Step& step, Candidate& candidate, int tokens, Prepared& out) {
  RowInputs& row = candidate.row;
  Result<resource::Admit> admitted = resource::Admit::wait;
  if (tokens > 0 && (!row.ahead || tokens == candidate.num_left())) {
    RowDemand part = part_of(step, candidate, tokens);
    admitted = admit(row, {row.request, part.resources, row.ahead});
    if (admitted && *admitted == resource::Admit::ok) {
      keep_in_passing(candidate, part.resources);
      const resource::StepRow claim{row.request, part.resources, row.ahead};
      return add_admitted(step, std::move(row), std::move(part), claim);
    }
  }
  sequences_->close(row.request);
  if (admitted) {
    out.waiting.push_back(std::move(row));
  } else {
    out.failed.push_back({row.request, std::move(admitted.error()), {}, {}, row.tag, false, {}});
  }
}

// A snapshot where the part ends is copied when it has ended: a step of one token a row keeps nothing itself.
void Engine::keep_in_passing(const Candidate& candidate, resource::RowDemand& part) {
  const int kept = candidate.open.keep_at - candidate.open.begin;
  if (kept <= 0 || kept >= part.tokens) return;
  part.kept_snapshot = sequences_->reserve_snapshot(candidate.row.request, part.label);
  if (part.kept_snapshot >= 0) part.kept_tokens = kept;
}

// First what must be computed again, then the row's own.
RowDemand Engine::part_of(Step& step, const Candidate& candidate, int tokens) const {
  RowDemand part = candidate.demand;
  const Progress& progress = candidate.row.progress;
  const int recomputed = std::min(tokens, candidate.open.num_missing);
  part.resources.tokens = tokens;
  part.resources.recomputed = recomputed;
  part.resources.starts_over = candidate.open.begin == 0;
  part.resources.restart = false;  // it is done
  if (progress.num_parts > 0) part.resources.context_tokens = 0;
  if (tokens < candidate.num_left()) {
    part.resources.ends = part.resources.samples = false;
    part.results.clear();
  }
  if (tokens == candidate.demand.resources.tokens && recomputed == 0) return part;
  part.sources.clear();
  if (recomputed > 0) {
    const auto text =
        sequences_->text(candidate.row.request, part.resources.label)
            .subspan(static_cast<std::size_t>(candidate.open.begin), static_cast<std::size_t>(recomputed));
    part.sources.push_back({ids_slot_, &step.recomputed.emplace_back(HostValue::i32(text)), recomputed, 0});
  }
  const std::int64_t begin = progress.done, end = begin + tokens - recomputed;
  std::vector<std::int64_t> starts(input_slots_.size());
  for (const SlotSource& source : candidate.demand.sources) {
    const auto slot = static_cast<std::size_t>(source.slot);
    if (!input_slots_[slot].per_token) {
      part.sources.push_back(source);
      continue;
    }
    const std::int64_t start = std::exchange(starts[slot], starts[slot] + source.items);
    const std::int64_t from = std::max(begin, start), to = std::min(end, start + source.items);
    if (from < to) part.sources.push_back({source.slot, source.value, to - from, from - start});
  }
  return part;
}

int Engine::commit_part(Step& step, int row) {
  const auto at = static_cast<std::size_t>(row);
  const resource::StepRow& claim = step.rows.rows[at];
  std::int64_t to_skip = claim.demand.recomputed;
  std::vector<std::int32_t> ids;
  for (const SlotSource& source : step.demands[at].sources) {
    if (!input_slots_[static_cast<std::size_t>(source.slot)].per_token) continue;
    if (source.slot != ids_slot_) {  // more than ids makes these tokens
      ids.clear();
      break;
    }
    if (to_skip > 0) {
      to_skip -= source.items;
      continue;
    }
    const auto some = ids_on_host(source, on_cpu());
    ids.insert(ids.end(), some.begin(), some.end());
  }
  const int snapshot = sequences_->commit(claim, ids);
  Progress& progress = step.results[at].progress;
  progress.done += claim.demand.tokens - claim.demand.recomputed;
  ++progress.num_parts;
  return snapshot;
}

void Engine::save_states(Step& step, int row, int snapshot) {
  const resource::StepRow& claim = step.rows.rows[static_cast<std::size_t>(row)];
  for (resource::StateSlots* const each : states_)
    each->save(claim.request, claim.demand.label, snapshot, step.ops().stream);
}

void Engine::undo(RequestId request, const Progress& progress) {
  if (sequences_ && progress.begun)
    sequences_->truncate(request, progress.label, progress.label_start, states_.empty());
}

}  // namespace mstar::engine
