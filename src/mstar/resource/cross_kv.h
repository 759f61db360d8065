// Keys and values of an encoder's output, one slot per request, written once and read at each decode step.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/resource/resource.h"
#include "mstar/tensor/tensor.h"

namespace mstar::resource {

class CrossKvPool final : public Resource {
 public:
  static Result<std::unique_ptr<CrossKvPool>> create(const decl::CrossKv& spec, const PoolLimits& limits, Device& device);
  static std::size_t planned_bytes(const decl::CrossKv& spec, const PoolLimits& limits);

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override;
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow&) override {}
  Status plan(const StepRows& rows, Stream stream) override;
  void commit(const StepRow& row) override;
  void rollback(const StepRow&) override {}
  Usage usage() const override;

  // Slots of the rows planned in `slot` [num_rows] i32 and their context lengths [num_rows] i32.
  const std::int32_t* slot_index(int slot) const { return slots_[slot].index.on_device(); }
  const std::int32_t* lengths(int slot) const { return slots_[slot].lengths.on_device(); }
  // The pool of one layer: keys and values [num_slots, kv_heads, max_context, head_dim].
  TensorView keys(int layer) const { return storage_.view().at(layer).at(0); }
  TensorView values(int layer) const { return storage_.view().at(layer).at(1); }

 private:
  struct Entry {
    std::int32_t slot = 0;
    int length = 0;
  };
  struct Slot {
    PlanBuffer index, lengths;
  };
  CrossKvPool(const decl::CrossKv& spec, const PoolLimits& limits, Device& device)
      : spec_(spec), limits_(limits), device_(device) {}
  decl::CrossKv spec_;
  PoolLimits limits_;
  Device& device_;
  Tensor storage_;  // [layers, 2, 1 + max_requests, kv_heads, max_context, head_dim]; slot 0 is the sink
  std::vector<std::int32_t> free_;
  std::unordered_map<RequestId, Entry> requests_;
  Slot slots_[kNumSlots];
};

}  // namespace mstar::resource
