#include "mstar/resource/paged_kv.h"

#include <algorithm>

#include "mstar/base/check.h"

namespace mstar::resource {
namespace {

int heads_of(const decl::PagedKv& spec, const PoolLimits& limits) {
  return spec.latent_dim ? 1 : std::max(1, spec.kv_heads / limits.head_shards);
}
int dim_of(const decl::PagedKv& spec) { return spec.latent_dim ? spec.latent_dim : spec.head_dim; }
int pages_needed(const decl::PagedKv& spec, const PoolLimits& limits) {
  const int per_sequence = (spec.max_tokens_per_request + spec.page_tokens - 1) / spec.page_tokens;
  return 1 + limits.max_requests * per_sequence * static_cast<int>(spec.labels.size());
}

}  // namespace

std::size_t PagedKvPool::planned_bytes(const decl::PagedKv& spec, const PoolLimits& limits) {
  return static_cast<std::size_t>(spec.layers) * 2 * pages_needed(spec, limits) * spec.page_tokens *
         heads_of(spec, limits) * dim_of(spec) * dtype_bytes(spec.dtype);
}

Result<std::unique_ptr<PagedKvPool>> PagedKvPool::create(const decl::PagedKv& spec, const PoolLimits& limits,
                                                         Device& device) {
  std::unique_ptr<PagedKvPool> pool(new PagedKvPool(spec, limits, device));
  pool->num_pages_ = pages_needed(spec, limits);
  MSTAR_TRY_ASSIGN(pool->storage_, Tensor::allocate(device, spec.dtype,
                                                    {spec.layers, 2, pool->num_pages_, spec.page_tokens,
                                                     heads_of(spec, limits), dim_of(spec)}));
  for (int page = pool->num_pages_ - 1; page > 0; --page) pool->free_.push_back(page);
  for (Slot& slot : pool->slots_) {
    const std::size_t rows = static_cast<std::size_t>(limits.max_rows);
    MSTAR_TRY_ASSIGN(slot.page_table, PlanBuffer::create(device, rows * pool->pages_per_sequence()));
    MSTAR_TRY_ASSIGN(slot.lengths, PlanBuffer::create(device, rows));
    MSTAR_TRY_ASSIGN(slot.offsets, PlanBuffer::create(device, rows + 1));
    MSTAR_TRY_ASSIGN(slot.positions, PlanBuffer::create(device, static_cast<std::size_t>(limits.max_tokens)));
  }
  return pool;
}

Status PagedKvPool::add_request(RequestId request, const decl::RequestParams&) {
  if (requests_.count(request)) return ok_status();
  const int claim = pages_per_sequence() * static_cast<int>(spec_.labels.size());
  if (claimed_pages_ + claim > num_pages_ - 1)
    return exhausted("no pages for another request in '" + spec_.name + "'; raise max_concurrent_requests or --memory");
  claimed_pages_ += claim;
  requests_.emplace(request, std::vector<Sequence>(spec_.labels.size()));
  return ok_status();
}

void PagedKvPool::remove_request(RequestId request) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  for (Sequence& sequence : it->second) free_.insert(free_.end(), sequence.pages.begin(), sequence.pages.end());
  claimed_pages_ -= pages_per_sequence() * static_cast<int>(spec_.labels.size());
  requests_.erase(it);
}

Result<Admit> PagedKvPool::admit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end()) return internal_error("a row of a request that '" + spec_.name + "' does not know");
  Sequence& sequence = it->second[row.demand.label];
  if (row.demand.restart) sequence.committed_tokens = sequence.planned_tokens = 0;
  const int wanted = sequence.planned_tokens + row.demand.tokens;
  if (wanted > spec_.max_tokens_per_request)
    return invalid_request("the context of " + std::to_string(spec_.max_tokens_per_request) +
                           " tokens is full; send a shorter prompt or a smaller max_tokens");
  const int more = std::max(0, pages_for(wanted) - static_cast<int>(sequence.pages.size()));
  if (more > static_cast<int>(free_.size())) return Admit::wait;
  for (int i = 0; i < more; ++i) {
    sequence.pages.push_back(free_.back());
    free_.pop_back();
  }
  sequence.planned_tokens = wanted;
  return Admit::ok;
}

Status PagedKvPool::plan(const StepRows& rows, Stream stream) {
  Slot& slot = slots_[rows.slot];
  MSTAR_CHECK(rows.num_rows() <= limits_.max_rows && rows.num_tokens() <= limits_.max_tokens);
  slot.num_rows = rows.num_rows();
  slot.num_tokens = rows.num_tokens();
  const int max_pages = pages_per_sequence();
  std::copy(rows.token_offsets.begin(), rows.token_offsets.end(), slot.offsets.host().begin());
  for (int r = 0; r < rows.num_rows(); ++r) {
    const StepRow& row = rows.rows[r];
    const Sequence& sequence = requests_.at(row.request)[row.demand.label];
    // Several rows of one label in a step do not occur; in-flight steps before this one are counted in planned_tokens.
    slot.lengths.host()[r] = sequence.planned_tokens;
    std::int32_t* table = slot.page_table.host().data() + static_cast<std::size_t>(r) * max_pages;
    std::copy(sequence.pages.begin(), sequence.pages.end(), table);
    std::fill(table + sequence.pages.size(), table + max_pages, 0);
    for (int t = 0; t < row.demand.tokens; ++t)
      slot.positions.host()[rows.token_offsets[r] + t] = sequence.planned_tokens - row.demand.tokens + t;
  }
  slot.offsets.upload(static_cast<std::size_t>(rows.num_rows()) + 1, stream);
  slot.lengths.upload(rows.num_rows(), stream);
  slot.page_table.upload(static_cast<std::size_t>(rows.num_rows()) * max_pages, stream);
  slot.positions.upload(rows.num_tokens(), stream);
  return ok_status();
}

void PagedKvPool::commit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it != requests_.end()) it->second[row.demand.label].committed_tokens += row.demand.tokens;
}

void PagedKvPool::rollback(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end()) return;
  Sequence& sequence = it->second[row.demand.label];
  sequence.planned_tokens -= row.demand.tokens;
  MSTAR_CHECK(sequence.planned_tokens >= sequence.committed_tokens);
  release_tail(sequence);
}

void PagedKvPool::release_tail(Sequence& sequence) {
  while (static_cast<int>(sequence.pages.size()) > pages_for(sequence.planned_tokens)) {
    free_.push_back(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

Usage PagedKvPool::usage() const {
  return {spec_.name, num_pages_ - 1 - static_cast<std::int64_t>(free_.size()), num_pages_ - 1, storage_.bytes()};
}

PagedKvView PagedKvPool::view(int layer, int slot) const {
  const TensorView layer_view = storage_.view().at(layer);
  return {.keys = layer_view.at(0),
          .values = layer_view.at(1),
          .page_table = slots_[slot].page_table.on_device(),
          .lengths = slots_[slot].lengths.on_device(),
          .max_pages = pages_per_sequence(),
          .page_tokens = spec_.page_tokens};
}

RaggedView PagedKvPool::ragged(int slot) const {
  return {slots_[slot].offsets.on_device(), slots_[slot].num_rows, slots_[slot].num_tokens};
}

int PagedKvPool::length(RequestId request, int label) const {
  const auto it = requests_.find(request);
  return it == requests_.end() ? 0 : it->second[label].committed_tokens;
}

void PagedKvPool::clear(RequestId request, int label) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  it->second[label].committed_tokens = it->second[label].planned_tokens = 0;
  release_tail(it->second[label]);
}

}  // namespace mstar::resource
