// Keys and values of an encoder's output, one slot per request, written once and read at each decode step.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/resource/resource.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::resource {

class CrossKvPool final : public Resource {
 public:
  static Result<std::unique_ptr<CrossKvPool>> create(const decl::CrossKv& spec, const PoolLimits& limits,
                                                     Device& device);
  static std::size_t planned_bytes(const decl::CrossKv& spec, const PoolLimits& limits);

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override;
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow& row) override;
  Status plan(const StepRows& rows, Stream stream) override;
  void commit(const StepRow& row) override;
  void rollback(const StepRow& row) override;
  Usage usage() const override;
  std::uint64_t digest() const override;
  // Committed context tokens; 0 when unknown.
  int length(RequestId request) const;
  int free_slots() const { return static_cast<int>(free_.size()); }

  // One layer's slots for the rows planned in `slot`; lengths count what this step writes.
  SlotKvView view(int layer, int slot) const;
  RaggedView contexts(int slot) const {
    return {slots_[slot].arrays.on_device(kOffsets), slots_[slot].num_rows, slots_[slot].num_tokens};
  }

 private:
  struct Entry {
    std::int32_t slot = 0;
    int committed_length = 0;
    std::vector<int> in_flight = {};  // lengths of contexts whose steps have not ended, oldest first
    // What a step planned now reads: it runs after those in flight.
    int planned_length() const { return in_flight.empty() ? committed_length : in_flight.back(); }
  };
  enum Array { kIndex, kLengths, kOffsets };
  struct Slot {
    PlanArrays arrays;
    int num_rows = 0;
    int num_tokens = 0;  // context tokens written by this step
  };
  CrossKvPool(const decl::CrossKv& spec, const PoolLimits& limits) : spec_(spec), limits_(limits) {}
  decl::CrossKv spec_;
  PoolLimits limits_;
  Tensor storage_;  // [layers, 2, 1 + max_requests, capacity, kv_heads, head_dim]; slot 0 is the sink
  std::vector<std::int32_t> free_;
  std::unordered_map<RequestId, Entry> requests_;
  std::vector<Slot> slots_;
};

}  // namespace mstar::resource
