#include "mstar/resource/cross_kv.h"

#include <algorithm>

#include "mstar/base/check.h"
#include "mstar/base/digest.h"

namespace mstar::resource {
namespace {

// Attention reads keys in blocks of 16.
int capacity_of(const decl::CrossKv& spec) { return (spec.max_context_tokens + 15) / 16 * 16; }

}  // namespace

std::size_t CrossKvPool::planned_bytes(const decl::CrossKv& spec, const PoolLimits& limits) {
  return static_cast<std::size_t>(spec.layers) * 2 * (1 + limits.max_requests) *
         heads_per_rank(spec.name, spec.kv_heads, limits.head_shards).value_or(0) * capacity_of(spec) * spec.head_dim *
         dtype_bytes(spec.dtype);
}

Result<std::unique_ptr<CrossKvPool>> CrossKvPool::create(const decl::CrossKv& spec, const PoolLimits& limits,
                                                         Device& device) {
  MSTAR_TRY(check_limits(limits, spec.name));
  MSTAR_TRY(check_positive(spec.name, {spec.layers, spec.kv_heads, spec.head_dim, spec.max_context_tokens}));
  MSTAR_TRY_ASSIGN(const int heads, heads_per_rank(spec.name, spec.kv_heads, limits.head_shards));
  std::unique_ptr<CrossKvPool> pool(new CrossKvPool(spec, limits));
  pool->slots_.resize(static_cast<std::size_t>(limits.num_plan_slots));
  MSTAR_TRY_ASSIGN(pool->storage_, Tensor::allocate(device, spec.dtype,
                                                    {spec.layers, 2, 1 + limits.max_requests, capacity_of(spec), heads,
                                                     spec.head_dim}));
  // Rows that pad a captured step read the sink; steps that are recorded write it.
  if (device.id().backend != Backend::cpu)
    device.fill_zero(pool->storage_.view().pointer, pool->storage_.bytes(), device.default_stream());
  for (int i = limits.max_requests; i > 0; --i) pool->free_.push_back(i);
  for (Slot& slot : pool->slots_) {
    const auto rows = static_cast<std::size_t>(limits.max_rows);
    const std::size_t counts[] = {rows, rows, rows + 1};
    MSTAR_TRY_ASSIGN(slot.arrays, PlanArrays::create(device, counts));
  }
  return pool;
}

Status CrossKvPool::add_request(RequestId request, const decl::RequestParams&) {
  if (requests_.count(request)) return ok_status();
  if (free_.empty())
    return exhausted("no slot for another request in '" + spec_.name + "'; raise max_concurrent_requests");
  requests_.emplace(request, Entry{.slot = free_.back()});
  free_.pop_back();
  return ok_status();
}

void CrossKvPool::remove_request(RequestId request) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  free_.push_back(it->second.slot);
  requests_.erase(it);
}

Result<Admit> CrossKvPool::admit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end()) return internal_error("a row of a request that '" + spec_.name + "' does not know");
  if (row.demand.context_tokens > spec_.max_context_tokens)
    return invalid_request("a context of " + std::to_string(row.demand.context_tokens) + " tokens is longer than " +
                           std::to_string(spec_.max_context_tokens));
  if (row.demand.context_tokens) it->second.in_flight.push_back(row.demand.context_tokens);
  return Admit::ok;
}

Status CrossKvPool::plan(const StepRows& rows, Stream stream) {
  if (rows.num_rows() > limits_.max_rows)
    return internal_error("a step of " + std::to_string(rows.num_rows()) + " rows is over the limit of '" + spec_.name +
                          "'");
  Slot& slot = slots_[rows.slot];
  slot.num_rows = rows.num_rows();
  slot.num_tokens = 0;
  slot.arrays.host(kOffsets)[0] = 0;
  for (int r = 0; r < rows.num_rows(); ++r) {
    const StepRow& row = rows.rows[r];
    const auto it = requests_.find(row.request);
    if (it == requests_.end() && row.request.valid())
      return internal_error("a step plans a row that '" + spec_.name + "' does not know");
    const bool is_padding = it == requests_.end();
    const int written = row.demand.context_tokens;
    slot.arrays.host(kIndex)[r] = is_padding ? 0 : it->second.slot;
    slot.arrays.host(kLengths)[r] = is_padding ? std::max(1, written) : it->second.planned_length();
    slot.arrays.host(kOffsets)[r + 1] = slot.num_tokens += written;
  }
  slot.arrays.upload(static_cast<std::size_t>(rows.num_rows()) + 1, stream);
  return ok_status();
}

void CrossKvPool::commit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end() || !row.demand.context_tokens) return;
  MSTAR_CHECK(!it->second.in_flight.empty(), "a context ended that was never admitted");
  it->second.committed_length = it->second.in_flight.front();
  it->second.in_flight.erase(it->second.in_flight.begin());
}

void CrossKvPool::rollback(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end() || !row.demand.context_tokens) return;
  MSTAR_CHECK(!it->second.in_flight.empty(), "a context ended that was never admitted");
  it->second.in_flight.erase(it->second.in_flight.begin());
}

void CrossKvPool::withdraw(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end() || !row.demand.context_tokens) return;
  MSTAR_CHECK(!it->second.in_flight.empty(), "a context was withdrawn that was never admitted");
  it->second.in_flight.pop_back();
}

int CrossKvPool::length(RequestId request) const {
  const auto it = requests_.find(request);
  return it == requests_.end() ? 0 : it->second.committed_length;
}

SlotKvView CrossKvPool::view(int layer, int slot) const {
  const TensorView both = storage_.view().at(layer);
  return {.keys = both.at(0),
          .values = both.at(1),
          .slots = slots_[slot].arrays.on_device(kIndex),
          .lengths = slots_[slot].arrays.on_device(kLengths)};
}

Usage CrossKvPool::usage() const {
  return {spec_.name, static_cast<std::int64_t>(requests_.size()), limits_.max_requests, storage_.bytes()};
}

std::uint64_t CrossKvPool::digest() const {
  std::uint64_t sum = Resource::digest();
  for (const auto& [id, entry] : requests_) {
    Digest each;
    each.add(id.value);
    each.add(static_cast<std::uint64_t>(entry.committed_length));
    each.add(entry.in_flight.size());
    sum += each.value();
  }
  return sum;
}

}  // namespace mstar::resource
