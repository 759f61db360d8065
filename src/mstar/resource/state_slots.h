// Small per-request tensors that a step reads and updates in place: denoise latents, rule states, recurrent states.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/resource/resource.h"
#include "mstar/tensor/tensor.h"

namespace mstar::resource {

// One slot of each declared tensor per (request, label); zeroed when claimed; slot 0 is the sink of padding rows. A
// step updates them in place, so a rollback cannot bring back what they held.
class StateSlots final : public Resource {
 public:
  static Result<std::unique_ptr<StateSlots>> create(std::string name, const std::vector<decl::StateTensor>& tensors,
                                                    int num_labels, const PoolLimits& limits, Device& device);
  static std::size_t planned_bytes(const std::vector<decl::StateTensor>& tensors, int num_labels,
                                   const PoolLimits& limits);

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override;
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow&) override {}
  Status plan(const StepRows& rows, Stream stream) override;
  void commit(const StepRow&) override {}
  void rollback(const StepRow&) override {}
  Status fork(RequestId request, int from_label, int to_label, Stream stream) override;
  Usage usage() const override;

  // Slot of each planned row [num_rows] i32.
  const std::int32_t* slot_index(int slot) const { return plans_[slot].on_device(); }
  std::span<const std::int32_t> slot_index_on_host(int slot) const { return plans_[slot].host(); }
  // All slots of one declared tensor: [num_slots, dims...].
  TensorView tensor(int index) const { return storage_[index].view(); }

 private:
  StateSlots(std::string name, int num_labels, const PoolLimits& limits, Device& device)
      : name_(std::move(name)), num_labels_(num_labels), limits_(limits), device_(device) {}
  std::string name_;
  int num_labels_;
  PoolLimits limits_;
  Device& device_;
  std::vector<Tensor> storage_;
  std::vector<std::int32_t> free_;
  std::unordered_map<RequestId, std::vector<std::int32_t>> requests_;
  std::vector<PlanBuffer> plans_;
};

}  // namespace mstar::resource
