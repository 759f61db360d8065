#include "mstar/resource/paged_kv.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/base/digest.h"

namespace mstar::resource {
namespace {

Result<int> heads_of(const decl::PagedKv& spec, const PoolLimits& limits) {
  return spec.latent_dim ? Result<int>(1) : heads_per_rank(spec.name, spec.kv_heads, limits.head_shards);
}
int dim_of(const decl::PagedKv& spec) { return spec.latent_dim ? spec.latent_dim : spec.head_dim; }
std::int64_t pages_needed(const decl::PagedKv& spec, const PoolLimits& limits) {
  const std::int64_t per_sequence = (spec.max_tokens_per_request + spec.page_tokens - 1) / spec.page_tokens;
  if (spec.pool_tokens > 0) return 1 + (spec.pool_tokens + spec.page_tokens - 1) / spec.page_tokens;
  return 1 + limits.max_requests * per_sequence * static_cast<std::int64_t>(spec.labels.size());
}

}  // namespace

std::size_t PagedKvPool::planned_bytes(const decl::PagedKv& spec, const PoolLimits& limits) {
  return static_cast<std::size_t>(spec.layers) * 2 * pages_needed(spec, limits) * spec.page_tokens *
         heads_of(spec, limits).value_or(0) * dim_of(spec) * dtype_bytes(spec.dtype);
}

Result<std::unique_ptr<PagedKvPool>> PagedKvPool::create(const decl::PagedKv& spec, const PoolLimits& limits,
                                                         Device& device) {
  MSTAR_TRY(check_limits(limits, spec.name));
  MSTAR_TRY(check_positive(spec.name, {spec.layers, spec.latent_dim ? 1 : spec.kv_heads, dim_of(spec), spec.page_tokens,
                                       spec.max_tokens_per_request, static_cast<std::int64_t>(spec.labels.size())}));
  MSTAR_TRY_ASSIGN(const int heads, heads_of(spec, limits));
  if (pages_needed(spec, limits) > std::numeric_limits<std::int32_t>::max())
    return bad_model("resource '" + spec.name + "' needs more pages than can be numbered");
  std::unique_ptr<PagedKvPool> pool(new PagedKvPool(spec, limits, device));
  pool->slots_.resize(static_cast<std::size_t>(limits.num_plan_slots));
  pool->num_pages_ = static_cast<int>(pages_needed(spec, limits));
  MSTAR_TRY_ASSIGN(
      pool->storage_,
      Tensor::allocate(device, spec.dtype, {spec.layers, 2, pool->num_pages_, spec.page_tokens, heads, dim_of(spec)}));
  pool->num_owners_.resize(static_cast<std::size_t>(pool->num_pages_));
  for (int page = pool->num_pages_ - 1; page > 0; --page) pool->free_.push_back(page);
  if (spec.prefix_cache && limits.prefix_cache)
    pool->index_.emplace(spec.page_tokens, pool->num_pages_, limits.state_snapshots);
  for (Slot& slot : pool->slots_) {
    const std::size_t rows = static_cast<std::size_t>(limits.max_rows);
    const std::size_t counts[] = {rows, rows + 1, static_cast<std::size_t>(limits.max_tokens),
                                  rows * pool->pages_per_sequence()};
    MSTAR_TRY_ASSIGN(slot.arrays, PlanArrays::create(device, counts));
  }
  return pool;
}

Status PagedKvPool::add_request(RequestId request, const decl::RequestParams& params) {
  if (requests_.count(request)) return ok_status();
  const int claim = limits_.on_demand ? 0 : pages_per_sequence() * static_cast<int>(spec_.labels.size());
  if (claimed_pages_ + claim > num_pages_ - 1)
    return exhausted("no pages for another request in '" + spec_.name + "'; raise max_concurrent_requests or --memory");
  claimed_pages_ += claim;
  Request& added = requests_[request];
  added.sequences.resize(spec_.labels.size());
  added.max_tokens = params.sampling.max_tokens;
  if (index_) added.root = index_->take_root(params.cache_salt);
  return ok_status();
}

void PagedKvPool::remove_request(RequestId request) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  for (Sequence& sequence : it->second.sequences) {
    for (const std::int32_t page : sequence.pages) release_page(page);
    drop_kept(sequence);
  }
  end_building(it->second);
  if (index_) index_->let_go(it->second.root);
  if (!limits_.on_demand) claimed_pages_ -= pages_per_sequence() * static_cast<int>(spec_.labels.size());
  requests_.erase(it);
  MSTAR_CHECK(!requests_.empty() || adds_up(), "pages were lost");
}

void PagedKvPool::Sequence::forget() {
  committed_tokens = planned_tokens = 0;
  num_stale = num_in_flight;
  text.clear();
  num_new_in_flight = num_sealed = 0;
  opaque = false;
  cut.reset();
  snapshot_at = last_snapshot = answer_snapshot = 0;
}

bool PagedKvPool::Sequence::end_oldest() {
  MSTAR_CHECK(num_in_flight > 0, "a row ended that was never admitted");
  --num_in_flight;
  part_in_flight = false;  // such a row is the last in flight
  if (num_stale == 0) return false;
  --num_stale;
  return true;
}

PagedKvPool::Sequence* PagedKvPool::find(RequestId request, int label) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return nullptr;
  const auto index = static_cast<std::size_t>(label);  // a negative one is past the end too
  auto& sequences = it->second.sequences;
  return index >= sequences.size() ? nullptr : &sequences[index];
}

Result<Admit> PagedKvPool::admit(const StepRow& row) {
  Sequence* const sequence = find(row);
  if (!sequence) return internal_error("a row of a request or label that '" + spec_.name + "' does not know");
  if (row.demand.tokens > limits_.max_tokens)
    return invalid_request(std::to_string(row.demand.tokens) + " tokens in one step are more than " +
                           std::to_string(limits_.max_tokens) + "; send a shorter prompt");
  const int before = row.demand.restart ? 0 : sequence->planned_tokens;
  const int wanted = before + row.demand.tokens;
  if (wanted > spec_.max_tokens_per_request)
    return invalid_request("the context of " + std::to_string(spec_.max_tokens_per_request) +
                           " tokens is full; send a shorter prompt or a smaller max_tokens");
  MSTAR_TRY_ASSIGN(const Admit room, make_room(row, num_new_pages(*sequence, before, wanted)));
  if (room == Admit::wait) return room;
  make_writable(*sequence, before, wanted);
  if (row.demand.restart) sequence->forget();
  sequence->planned_tokens = wanted;
  sequence->num_new_in_flight += row.demand.tokens - row.demand.recomputed;
  sequence->part_in_flight = !row.demand.ends;
  ++sequence->num_in_flight;
  return Admit::ok;
}

void PagedKvPool::plan_row(Slot& slot, int index, const Sequence* sequence, const StepRow& row,
                           std::int32_t first_token) const {
  const int max_pages = pages_per_sequence();
  std::int32_t* table = slot.arrays.host(kPageTable).data() + static_cast<std::size_t>(index) * max_pages;
  const int length = sequence ? sequence->planned_tokens : std::max(1, row.demand.tokens);
  // Pages past the length may be held for later; readers need not see them.
  const int num_pages = sequence ? pages_for(length) : 0;
  if (sequence) std::copy_n(sequence->pages.begin(), num_pages, table);
  std::fill(table + num_pages, table + max_pages, 0);
  slot.arrays.host(kLengths)[index] = length;
  for (int t = 0; t < row.demand.tokens; ++t)
    slot.arrays.host(kPositions)[first_token + t] = (sequence ? length - row.demand.tokens : 0) + t;
}

Status PagedKvPool::plan(const StepRows& rows, Stream stream) {
  Slot& slot = slots_[rows.slot];
  if (rows.num_rows() > limits_.max_rows || rows.num_tokens() > limits_.max_tokens)
    return internal_error("a step of " + std::to_string(rows.num_rows()) + " rows and " +
                          std::to_string(rows.num_tokens()) + " tokens is over the limits of '" + spec_.name + "'");
  slot.num_rows = rows.num_rows();
  slot.num_tokens = rows.num_tokens();
  std::copy(rows.token_offsets.begin(), rows.token_offsets.end(), slot.arrays.host(kOffsets).begin());
  for (int r = 0; r < rows.num_rows(); ++r) {
    const StepRow& row = rows.rows[r];
    // Several rows of one label in a step do not occur; in-flight steps before this one are counted in planned_tokens.
    const Sequence* const sequence = find(row);
    if (!sequence && row.request.valid())
      return internal_error("a step plans a row that '" + spec_.name + "' does not know");
    plan_row(slot, r, sequence, row, rows.token_offsets[r]);
  }
  slot.arrays.upload(static_cast<std::size_t>(rows.num_rows()) * pages_per_sequence(), stream);
  return ok_status();
}

int PagedKvPool::commit(const StepRow& row, std::span<const std::int32_t> ids) {
  int snapshot = -1;
  Sequence* const sequence = find(row);
  if (!sequence) return snapshot;
  Request& request = requests_.at(row.request);
  end_building(request);
  if (!sequence->end_oldest()) {
    const int num_new = row.demand.tokens - row.demand.recomputed;
    sequence->num_new_in_flight -= num_new;
    const int begin = std::exchange(sequence->committed_tokens, sequence->committed_tokens + row.demand.tokens);
    if (num_new != static_cast<int>(ids.size())) {
      sequence->opaque = true;
      sequence->text.clear();
    } else if (!sequence->opaque) {
      sequence->text.insert(sequence->text.end(), ids.begin(), ids.end());
      seal(request, *sequence);
      if (keeps(*sequence, row.demand)) give_kept(*sequence, begin + row.demand.kept_tokens);
      snapshot = take_snapshot(*sequence, row.demand);
    }
  }
  if (keeps(*sequence, row.demand)) drop_kept(*sequence);
  settle(request);
  return snapshot;
}

void PagedKvPool::rollback(const StepRow& row) {
  Sequence* const sequence = find(row);
  if (!sequence) return;
  Request& request = requests_.at(row.request);
  end_building(request);
  if (keeps(*sequence, row.demand)) drop_kept(*sequence);
  if (!sequence->end_oldest()) {
    sequence->planned_tokens -= row.demand.tokens;
    sequence->num_new_in_flight -= row.demand.tokens - row.demand.recomputed;
    release_tail(*sequence);
  }
  settle(request);
}

void PagedKvPool::withdraw(const StepRow& row) {
  Sequence* const sequence = find(row);
  if (!sequence) return;
  MSTAR_CHECK(sequence->num_in_flight > sequence->num_stale, "a row was withdrawn that was never admitted");
  --sequence->num_in_flight;
  sequence->part_in_flight = false;
  sequence->planned_tokens -= row.demand.tokens;
  sequence->num_new_in_flight -= row.demand.tokens - row.demand.recomputed;
  release_tail(*sequence);
}

Status PagedKvPool::fork(RequestId request, int from_label, int to_label, Stream) {
  const Sequence* const from = find(request, from_label);
  Sequence* const to = find(request, to_label);
  if (!from || !to) return internal_error("fork of a request or label that '" + spec_.name + "' does not know");
  if (from == to) return ok_status();
  to->forget();
  release_tail(*to);
  to->pages.assign(from->pages.begin(), from->pages.begin() + pages_for(from->planned_tokens));
  for (const std::int32_t page : to->pages) ++num_owners_[static_cast<std::size_t>(page)];
  // Rows of `from` in flight end before anything that reads the copy, or their request fails.
  to->committed_tokens = to->planned_tokens = from->planned_tokens;
  to->opaque = from->opaque || from->num_new_in_flight > 0;
  if (!to->opaque) {
    to->text = from->text;
    to->num_sealed = from->num_sealed;
  }
  return ok_status();
}

Usage PagedKvPool::usage() const {
  return {.name = spec_.name,
          .used = num_owned(),
          .total = num_pages_ - 1,
          .bytes = storage_.bytes(),
          .cached = index_ ? index_->num_idle() : 0,
          .num_preempted = num_preempted_,
          .found_tokens = found_tokens_,
          .num_snapshots = index_ ? index_->num_snapshots() : 0};
}

std::uint64_t PagedKvPool::digest() const {
  std::uint64_t sum = Resource::digest();  // of requests in any order
  for (const auto& [id, request] : requests_) {
    Digest each;
    each.add(id.value);
    each.add(static_cast<std::uint64_t>(request.promised_pages));
    for (const Sequence& sequence : request.sequences) {
      each.add(static_cast<std::uint64_t>(sequence.committed_tokens));
      each.add(static_cast<std::uint64_t>(sequence.planned_tokens));
      each.add(sequence.text.size());
      each.add(sequence.pages.size());
    }
    sum += each.value();
  }
  return sum;
}

PagedKvView PagedKvPool::view(int layer, int slot) const {
  const TensorView layer_view = storage_.view().at(layer);
  return {.keys = layer_view.at(0),
          .values = layer_view.at(1),
          .page_table = slots_[slot].arrays.on_device(kPageTable),
          .lengths = slots_[slot].arrays.on_device(kLengths),
          .max_pages = pages_per_sequence(),
          .page_tokens = spec_.page_tokens};
}

RaggedView PagedKvPool::ragged(int slot) const {
  return {slots_[slot].arrays.on_device(kOffsets), slots_[slot].num_rows, slots_[slot].num_tokens};
}

int PagedKvPool::length(RequestId request, int label) const {
  const Sequence* const sequence = find(request, label);
  return sequence ? sequence->committed_tokens : 0;
}

void PagedKvPool::clear(RequestId request, int label) {
  Sequence* const sequence = find(request, label);
  if (!sequence) return;
  sequence->forget();
  release_tail(*sequence);
}

}  // namespace mstar::resource
