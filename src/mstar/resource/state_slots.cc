#include "mstar/resource/state_slots.h"

#include <algorithm>
#include <utility>

#include "mstar/base/check.h"

namespace mstar::resource {
namespace {

// Of one rank.
Shape slotted(const decl::StateTensor& tensor, int num_slots, int head_shards) {
  std::vector<std::int64_t> dims = {num_slots};
  dims.insert(dims.end(), tensor.dims.begin(), tensor.dims.end());
  if (tensor.shard_axis >= 0) dims[static_cast<std::size_t>(tensor.shard_axis) + 1] /= head_shards;
  return Shape(dims);
}

int slots_needed(int num_labels, const PoolLimits& limits, StateUpdate update) {
  return 1 + limits.max_requests * num_labels * (update == StateUpdate::double_buffered ? 2 : 1);
}

}  // namespace

std::size_t StateSlots::planned_bytes(const std::vector<decl::StateTensor>& tensors, int num_labels,
                                      const PoolLimits& limits, StateUpdate update, int num_snapshots) {
  std::size_t bytes = 0;
  const int num_slots = slots_needed(num_labels, limits, update) + num_snapshots;
  for (const auto& tensor : tensors)
    bytes += static_cast<std::size_t>(slotted(tensor, num_slots, limits.head_shards).num_elements()) *
             dtype_bytes(tensor.dtype);
  return bytes;
}

Result<std::unique_ptr<StateSlots>> StateSlots::create(std::string name, const std::vector<decl::StateTensor>& tensors,
                                                       int num_labels, const PoolLimits& limits, Device& device,
                                                       StateUpdate update, int num_snapshots) {
  MSTAR_TRY(check_limits(limits, name));
  MSTAR_TRY(check_positive(name, {num_labels, num_snapshots + 1}));
  for (const auto& tensor : tensors) {
    MSTAR_TRY(check_positive(name, tensor.dims));
    if (tensor.dims.size() >= static_cast<std::size_t>(kMaxRank))
      return bad_model("resource '" + name + "': tensor '" + tensor.name + "' has too many dimensions");
    const int axis = tensor.shard_axis;
    if (axis >= 0 && (axis >= static_cast<int>(tensor.dims.size()) ||
                      tensor.dims[static_cast<std::size_t>(axis)] % limits.head_shards != 0))
      return bad_model("resource '" + name + "': axis " + std::to_string(axis) + " of tensor '" + tensor.name +
                       "' does not divide over " + std::to_string(limits.head_shards) + " ranks");
  }
  std::unique_ptr<StateSlots> slots(new StateSlots(std::move(name), num_labels, limits, device, update));
  const int num_slots = slots_needed(num_labels, limits, update);
  slots->first_snapshot_ = num_slots;
  slots->num_snapshots_ = num_snapshots;
  for (const auto& tensor : tensors) {
    MSTAR_TRY_ASSIGN(Tensor storage, Tensor::allocate(device, tensor.dtype,
                                                      slotted(tensor, num_slots + num_snapshots, limits.head_shards)));
    // Snapshots are written before they are read: untouched, they are no memory yet where pages come on demand.
    const TensorView own = storage.view().slice(0, num_slots);
    device.fill_zero(own.pointer, own.bytes(), device.default_stream());
    slots->storage_.push_back(std::move(storage));
  }
  for (int i = num_slots - 1; i > 0; --i) slots->free_.push_back(i);
  slots->plans_.resize(static_cast<std::size_t>(limits.num_plan_slots));
  const std::vector<std::size_t> counts(num_snapshots > 0 ? 4 : 2, static_cast<std::size_t>(limits.max_rows));
  for (Plan& plan : slots->plans_) {
    MSTAR_TRY_ASSIGN(plan.arrays, PlanArrays::create(device, counts));
  }
  return slots;
}

Status StateSlots::add_request(RequestId request, const decl::RequestParams&) {
  if (requests_.count(request)) return ok_status();
  const int count = num_labels_ * slots_per_label();
  if (static_cast<int>(free_.size()) < count)
    return exhausted("no slot for another request in '" + name_ + "'; raise max_concurrent_requests");
  std::vector<State> states(static_cast<std::size_t>(num_labels_));
  const auto take = [&] {
    const std::int32_t slot = free_.back();
    free_.pop_back();
    for (const Tensor& tensor : storage_) {
      const TensorView view = tensor.view().at(slot);
      device_.fill_zero(view.pointer, view.bytes(), device_.default_stream());
    }
    return slot;
  };
  for (State& state : states) {
    state.current = take();
    state.other = update_ == StateUpdate::double_buffered ? take() : state.current;
  }
  requests_.emplace(request, std::move(states));
  return ok_status();
}

void StateSlots::remove_request(RequestId request) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  for (const State& state : it->second) {
    free_.push_back(state.current);
    if (state.other != state.current) free_.push_back(state.other);
  }
  requests_.erase(it);
}

// Labels are those of the KV beside it; state that has one for all serves each.
StateSlots::State* StateSlots::find(RequestId request, int label) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return nullptr;
  return &it->second[std::min<std::size_t>(static_cast<std::size_t>(label), it->second.size() - 1)];
}

Result<Admit> StateSlots::admit(const StepRow& row) {
  State* const state = find(row);
  if (!state) return internal_error("a row of a request that '" + name_ + "' does not know");
  state->swap();
  ++state->num_in_flight;
  // State that several labels share is none of theirs to begin anew.
  const bool own = starts_over_ && row.demand.label < num_labels_;
  if (!std::exchange(state->is_zero, false) && row.demand.starts_over && own)
    for (const Tensor& tensor : storage_) {
      const TensorView view = tensor.view().at(state->other);  // what the row reads
      device_.fill_zero(view.pointer, view.bytes(), device_.default_stream());
    }
  return Admit::ok;
}

void StateSlots::rollback(const StepRow& row) {
  State* const state = find(row);
  if (!state) return;
  state->swap();
  --state->num_in_flight;
}

void StateSlots::commit(const StepRow& row) {
  if (State* const state = find(row)) --state->num_in_flight;
}

void StateSlots::copy(std::int32_t from, std::int32_t to, Stream stream) {
  for (const Tensor& tensor : storage_) {
    const TensorView source = tensor.view().at(from);
    device_.copy_within(tensor.view().at(to).pointer, source.pointer, source.bytes(), stream);
  }
}

void StateSlots::save(RequestId request, int label, int snapshot, Stream stream) {
  const State* const state = find(request, label);
  if (!state) return;
  // The second row in flight would write what the first one reads.
  MSTAR_CHECK(state->num_in_flight < slots_per_label(), "a state was saved that is being overwritten");
  copy(state->num_in_flight ? state->other : state->current, first_snapshot_ + snapshot, stream);
}

void StateSlots::restore(RequestId request, int label, int snapshot, Stream stream) {
  State* const state = find(request, label);
  if (!state) return;
  MSTAR_CHECK(state->num_in_flight == 0, "a state was restored under a row in flight");
  copy(first_snapshot_ + snapshot, state->current, stream);
  state->is_zero = false;
}

Status StateSlots::plan(const StepRows& rows, Stream stream) {
  if (rows.num_rows() > limits_.max_rows)
    return internal_error("a step of " + std::to_string(rows.num_rows()) + " rows is over the limit of '" + name_ +
                          "'");
  auto& [arrays, keeps] = plans_[rows.slot];
  keeps =
      (rows.packed && num_snapshots_ > 0) ||
      std::any_of(rows.rows.begin(), rows.rows.end(), [](const StepRow& row) { return row.demand.kept_tokens > 0; });
  for (int r = 0; r < rows.num_rows(); ++r) {
    const State* const state = find(rows.rows[r]);
    if (!state && rows.rows[r].request.valid())
      return internal_error("a step plans a row that '" + name_ + "' does not know");
    arrays.host(kRead)[r] = state ? state->other : 0;
    arrays.host(kWrite)[r] = state ? state->current : 0;
    if (!keeps) continue;
    const RowDemand& demand = rows.rows[r].demand;
    arrays.host(kKeptTokens)[r] = demand.kept_tokens;
    arrays.host(kKeptSlots)[r] = demand.kept_tokens > 0 ? first_snapshot_ + demand.kept_snapshot : 0;
  }
  arrays.upload(static_cast<std::size_t>(rows.num_rows()), stream);
  return ok_status();
}

KeptStates StateSlots::kept(int slot) const {
  const Plan& plan = plans_[slot];
  if (!plan.keeps) return {};
  return {plan.arrays.on_device(kKeptTokens), plan.arrays.on_device(kKeptSlots)};
}

KeptStates StateSlots::kept_on_host(int slot) const {
  const Plan& plan = plans_[slot];
  if (!plan.keeps) return {};
  return {plan.arrays.host(kKeptTokens).data(), plan.arrays.host(kKeptSlots).data()};
}

Usage StateSlots::usage() const {
  std::size_t bytes = 0;
  for (const Tensor& tensor : storage_) bytes += tensor.bytes();
  return {name_, static_cast<std::int64_t>(requests_.size()) * num_labels_,
          static_cast<std::int64_t>(limits_.max_requests) * num_labels_, bytes};
}

Status StateSlots::fork(RequestId request, int from_label, int to_label, Stream stream) {
  const auto it = requests_.find(request);
  if (it == requests_.end() || std::min(from_label, to_label) < 0 || std::max(from_label, to_label) >= num_labels_)
    return internal_error("fork of a request or label that '" + name_ + "' does not know");
  State& to = it->second[static_cast<std::size_t>(to_label)];
  copy(it->second[static_cast<std::size_t>(from_label)].current, to.current, stream);
  to.is_zero = false;
  return ok_status();
}

}  // namespace mstar::resource
