// Pages: who owns them, and what becomes of them when nobody does.
#include <algorithm>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/resource/paged_kv.h"

namespace mstar::resource {

std::int32_t PagedKvPool::take_page() {
  std::int32_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (index_) {
    page = index_->evict();
  }
  MSTAR_CHECK(page > 0, "a page was taken where none was left");
  num_owners_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagedKvPool::own_page(std::int32_t page) {
  if (num_owners_[static_cast<std::size_t>(page)]++ == 0) index_->set_idle(page, false);
}

void PagedKvPool::release_page(std::int32_t page) {
  if (--num_owners_[static_cast<std::size_t>(page)] > 0) return;
  if (index_ && index_->node_of(page) != PrefixIndex::kNone) {
    index_->set_idle(page, true);
  } else {
    free_.push_back(page);
  }
}

void PagedKvPool::release_tail(Sequence& sequence) {
  MSTAR_CHECK(sequence.planned_tokens >= sequence.committed_tokens);
  while (static_cast<int>(sequence.pages.size()) > pages_for(sequence.planned_tokens)) {
    release_page(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

bool PagedKvPool::is_shared(std::int32_t page) const {
  return num_owners_[static_cast<std::size_t>(page)] > 1 || (index_ && index_->node_of(page) != PrefixIndex::kNone);
}

int PagedKvPool::num_new_pages(const Sequence& sequence, int begin, int end) const {
  const int num_held = static_cast<int>(sequence.pages.size()), num_pages = pages_for(end);
  int more = std::max(0, num_pages - num_held);
  for (int i = begin / spec_.page_tokens; i < std::min(num_pages, num_held) && begin < end; ++i)
    more += is_shared(sequence.pages[static_cast<std::size_t>(i)]);
  return more;
}

void PagedKvPool::make_writable(Sequence& sequence, int begin, int end) {
  const int first = begin / spec_.page_tokens, num_pages = pages_for(end);
  for (int i = first; i < std::min(num_pages, static_cast<int>(sequence.pages.size())) && begin < end; ++i) {
    std::int32_t& page = sequence.pages[static_cast<std::size_t>(i)];
    if (!is_shared(page)) continue;
    const std::int32_t shared = std::exchange(page, take_page());
    if (i == first && begin % spec_.page_tokens != 0) copy_page(shared, page);
    release_page(shared);
  }
  while (static_cast<int>(sequence.pages.size()) < num_pages) sequence.pages.push_back(take_page());
}

bool PagedKvPool::adds_up() const {
  std::vector<std::uint16_t> holders(static_cast<std::size_t>(num_pages_));
  int num_kept = 0;
  for (const auto& [id, request] : requests_)
    for (const Sequence& sequence : request.sequences) {
      for (const std::int32_t page : sequence.pages) ++holders[static_cast<std::size_t>(page)];
      num_kept += sequence.kept_snapshot >= 0;
    }
  std::vector<bool> is_free(static_cast<std::size_t>(num_pages_));
  for (const std::int32_t page : free_) {
    if (is_free[static_cast<std::size_t>(page)]) return false;
    is_free[static_cast<std::size_t>(page)] = true;
  }
  int num_idle = 0;
  for (std::int32_t page = 1; page < num_pages_; ++page) {
    const bool sealed = index_ && index_->node_of(page) != PrefixIndex::kNone;
    const bool free = is_free[static_cast<std::size_t>(page)], owned = holders[static_cast<std::size_t>(page)] > 0;
    if (holders[static_cast<std::size_t>(page)] != num_owners_[static_cast<std::size_t>(page)]) return false;
    if (free ? owned || sealed : !owned && !sealed) return false;
    num_idle += !owned && sealed;
  }
  if (is_free[0] || holders[0] > 0) return false;
  return !index_ ||
         (index_->num_idle() == num_idle && index_->num_taken_snapshots() == num_kept && index_->snapshots_add_up());
}

void PagedKvPool::copy_page(std::int32_t from, std::int32_t to) {
  for (int layer = 0; layer < spec_.layers; ++layer)
    for (int part = 0; part < 2; ++part) {
      const TensorView pages = storage_.view().at(layer).at(part);
      device_.copy_within(pages.at(to).pointer, pages.at(from).pointer, pages.at(from).bytes(),
                          device_.default_stream());
    }
}

}  // namespace mstar::resource
