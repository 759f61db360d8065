// Small per-request tensors that a step reads and updates: denoise latents, rule states, recurrent states.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/resource/resource.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::resource {

// How a step updates a state.
// in_place: it reads and writes one slot; a rollback cannot bring back what that held, so can_roll_back() is false.
// double_buffered: it reads one slot and writes the whole of the other, and the two swap; a rollback swaps them back.
// Of two rows in flight the second writes what the first has read, so the first can be rolled back only before the
// second ran (or when its request ends).
enum class StateUpdate : std::uint8_t { in_place, double_buffered };

// The state of each declared tensor per (request, label); zeroed when claimed; slot 0 is the sink of padding rows.
// Behind the slots of requests lie those of snapshots, whose numbers the caller gives out.
class StateSlots final : public Resource {
 public:
  static Result<std::unique_ptr<StateSlots>> create(std::string name, const std::vector<decl::StateTensor>& tensors,
                                                    int num_labels, const PoolLimits& limits, Device& device,
                                                    StateUpdate update = StateUpdate::in_place, int num_snapshots = 0);
  static std::size_t planned_bytes(const std::vector<decl::StateTensor>& tensors, int num_labels,
                                   const PoolLimits& limits, StateUpdate update = StateUpdate::in_place,
                                   int num_snapshots = 0);

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override;
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow& row) override { rollback(row); }
  Status plan(const StepRows& rows, Stream stream) override;
  void commit(const StepRow& row) override;
  void rollback(const StepRow& row) override;
  bool can_roll_back() const override { return update_ == StateUpdate::double_buffered; }
  Status fork(RequestId request, int from_label, int to_label, Stream stream) override;
  // One value for each label and tensor, the tensors of a label together.
  Result<Values> take_out(RequestId request) override;
  Status put_in(RequestId request, const Values& values) override;
  Usage usage() const override;

  // For state that others than the label's rows write (latents): demand.starts_over does not zero it.
  void keep_what_others_wrote() { starts_over_ = false; }

  // Copies, in the order of `stream`, what the label's oldest row in flight begins from: its state after the rows that
  // were committed. At most one row is in flight, and in place none is. Requests that are gone are ignored.
  void save(RequestId request, int label, int snapshot, Stream stream);
  // Makes it what the label's next row begins from. None is in flight. As save().
  void restore(RequestId request, int label, int snapshot, Stream stream);

  // Slots of the planned rows [num_rows] i32: where each reads, and where it writes. One and the same in place.
  const std::int32_t* read_index(int slot) const { return plans_[slot].arrays.on_device(kRead); }
  const std::int32_t* write_index(int slot) const { return plans_[slot].arrays.on_device(kWrite); }
  std::span<const std::int32_t> read_index_on_host(int slot) const { return plans_[slot].arrays.host(kRead); }
  std::span<const std::int32_t> write_index_on_host(int slot) const { return plans_[slot].arrays.host(kWrite); }
  // What the step must keep within the planned rows (RowDemand::kept_tokens): a component that lets its state have
  // snapshots writes them. Steps of one token a row never have any.
  KeptStates kept(int slot) const;
  KeptStates kept_on_host(int slot) const;
  // All slots of one declared tensor: [num_slots, dims...].
  TensorView tensor(int index) const { return storage_[index].view(); }

 private:
  enum Array { kRead, kWrite, kKeptTokens, kKeptSlots };
  struct Plan {
    PlanArrays arrays;
    bool keeps = false;  // of some row
  };
  struct State {               // of one label
    std::int32_t current = 0;  // written by the last admitted row
    std::int32_t other = 0;    // what that row reads; equal to `current` in place
    int num_in_flight = 0;
    bool is_zero = true;  // as claimed
    void swap() { std::swap(current, other); }
  };
  StateSlots(std::string name, int num_labels, const PoolLimits& limits, Device& device, StateUpdate update)
      : name_(std::move(name)), num_labels_(num_labels), limits_(limits), device_(device), update_(update) {}
  State* find(const StepRow& row) { return find(row.request, row.demand.label); }
  State* find(RequestId request, int label);
  void copy(std::int32_t from, std::int32_t to, Stream stream);
  int slots_per_label() const { return update_ == StateUpdate::double_buffered ? 2 : 1; }

  std::string name_;
  int num_labels_;
  PoolLimits limits_;
  Device& device_;
  StateUpdate update_;
  bool starts_over_ = true;
  std::int32_t first_snapshot_ = 0;  // slot
  int num_snapshots_ = 0;
  std::vector<Tensor> storage_;
  std::vector<std::int32_t> free_;
  std::unordered_map<RequestId, std::vector<State>> requests_;  // by label
  std::vector<Plan> plans_;
};

}  // namespace mstar::resource
