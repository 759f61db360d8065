// Texts: what is found of them in the cache, who is promised pages, and who loses them.
#include <algorithm>

#include "mstar/resource/paged_kv.h"

namespace mstar::resource {

int PagedKvPool::Request::num_pages() const {
  int count = 0;
  for (const Sequence& each : sequences) count += static_cast<int>(each.pages.size());
  return count;
}

bool PagedKvPool::Request::in_flight() const {
  return std::any_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return s.num_in_flight > 0; });
}

bool PagedKvPool::Request::opaque() const {
  return std::any_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return s.opaque; });
}

Result<OpenRow> PagedKvPool::open(const SequenceRow& row) {
  Sequence* const sequence = find(row.request, row.label);
  if (!sequence) return internal_error("a row of a request or label that '" + spec_.name + "' does not know");
  Request& request = requests_.at(row.request);
  OpenRow out;
  if (request.leaving || sequence->part_in_flight || sequence->cut) return out;
  out.begun = true;
  if (row.restart) {
    sequence->forget();
    release_tail(*sequence);
  }
  const int missing =
      sequence->opaque ? 0 : sequence->text_tokens() + sequence->num_new_in_flight - sequence->planned_tokens;
  if (row.ahead && (missing > 0 || (limits_.on_demand && !request.promised))) return out;
  if (sequence->planned_tokens + missing + row.num_tokens > spec_.max_tokens_per_request)
    return std::move(invalid_request("the context of " + std::to_string(spec_.max_tokens_per_request) +
                                     " tokens is full; send a shorter prompt or a smaller max_tokens"))
        .with_reason(kContextExceeded);
  if (limits_.on_demand && !request.promised && std::min(first_waiting_, first_unpromised_) < row.request) return out;
  const bool matches = index_ && !row.ahead && !sequence->opaque && sequence->num_in_flight == 0 &&
                       missing + row.num_tokens > 1 &&
                       sequence->committed_tokens == sequence->num_sealed * spec_.page_tokens;
  Prefix prefix;
  if (matches) prefix = find_prefix(request, *sequence, row);
  MSTAR_TRY_ASSIGN(const bool promised,
                   promise(row.request, request, *sequence, row,
                           std::span(prefix.pages).first(static_cast<std::size_t>(prefix.num_usable))));
  if (!promised) return out;
  const Snaps snaps = matches ? next_snaps(*sequence, row, prefix) : Snaps{};
  sequence->snapshot_at = snaps.keep_at;
  const bool waits = matches && waits_for_others(request, *sequence, row, prefix);
  if (waits && keeps_state()) return out;  // perhaps there is a later snapshot then
  take_over(request, *sequence, row, prefix, missing, out);
  out.keep_at = snaps.keep_at;
  out.cut_at = snaps.cut_at;
  out.ready = !waits;
  return out;
}

void PagedKvPool::take_over(Request& request, Sequence& sequence, const SequenceRow& row, const Prefix& prefix,
                            int missing, OpenRow& out) {
  for (int i = 0; i < prefix.num_usable; ++i) {
    const std::int32_t page = prefix.pages[static_cast<std::size_t>(i)];
    own_page(page);
    sequence.pages.push_back(page);
  }
  const int num_found = prefix.num_usable * spec_.page_tokens;
  sequence.num_sealed += prefix.num_usable;
  sequence.committed_tokens += num_found;
  sequence.planned_tokens += num_found;
  out.num_found = std::max(0, num_found - missing);
  const auto own = row.ids.subspan(0, static_cast<std::size_t>(out.num_found));
  sequence.text.insert(sequence.text.end(), own.begin(), own.end());
  request.cached_tokens += out.num_found;
  found_tokens_ += out.num_found;
  out.num_missing = std::max(0, missing - num_found);
  out.begin = sequence.planned_tokens;
  if (!keeps_state() || prefix.num_usable == 0) return;
  out.snapshot = index_->snapshot_of(sequence.pages.back());
  index_->use_snapshot(sequence.pages.back());
  sequence.last_snapshot = sequence.committed_tokens;
}

// Ids of a page of text and row; fewer when they end before, or the host does not know them.
std::vector<std::int32_t> PagedKvPool::page_ids(const Sequence& sequence, const SequenceRow& row, int page) const {
  std::vector<std::int32_t> out;
  const auto size = static_cast<std::size_t>(spec_.page_tokens);
  const std::size_t num_text = sequence.text.size(), begin = static_cast<std::size_t>(page) * size;
  for (std::size_t i = begin; i < begin + size && i < num_text + row.ids.size(); ++i)
    out.push_back(i < num_text ? sequence.text[i] : row.ids[i - num_text]);
  return out;
}

// Never the last token: the row is there for what comes of it.
PagedKvPool::Prefix PagedKvPool::find_prefix(const Request& request, const Sequence& sequence,
                                             const SequenceRow& row) const {
  Prefix out;
  PrefixIndex::Node node = sequence.num_sealed ? index_->node_of(sequence.pages.back()) : request.root;
  for (int page = sequence.num_sealed; (page + 1) * spec_.page_tokens < length_after(sequence, row); ++page) {
    const auto ids = page_ids(sequence, row, page);
    const std::int32_t next = index_->find(node, ids);
    if (next == 0) {
      out.is_branch = !out.pages.empty() && index_->is_continued(out.pages.back());
      break;
    }
    out.pages.push_back(next);
    node = index_->node_of(next);
    if (!keeps_state() || index_->snapshot_of(next) >= 0) out.num_usable = static_cast<int>(out.pages.size());
  }
  return out;
}

// Without other state the row needs just the page behind those that are known. With it, known pages are computed again
// from the last snapshot on, and who does that is worth waiting for when it takes one that helps the row.
bool PagedKvPool::waits_for_others(Request& request, const Sequence& sequence, const SequenceRow& row,
                                   const Prefix& prefix) {
  end_building(request);
  const int first = sequence.num_sealed + prefix.num_usable;
  const int frontier = sequence.num_sealed + static_cast<int>(prefix.pages.size());
  const int before = sequence.num_sealed;
  PrefixIndex::Node node = before ? index_->node_of(sequence.pages.back()) : request.root;
  if (first > before) node = index_->node_of(prefix.pages[static_cast<std::size_t>(first - before - 1)]);
  std::optional<std::uint64_t> own;
  for (int page = first; page <= frontier; ++page) {
    const auto ids = page_ids(sequence, row, page);
    if (static_cast<int>(ids.size()) < spec_.page_tokens) break;
    const std::uint64_t key = index_->key(node, ids);
    if (page == first) own = key;
    const bool is_known = page < frontier;
    if (const auto other = building_.find(key); other != building_.end()) {
      const int end = other->second.snapshot_at;
      const int most = is_known ? frontier * spec_.page_tokens : length_after(sequence, row) - 1;
      if (keeps_state() ? end > 0 && end <= most : (page + 1) * spec_.page_tokens <= most) return true;
    }
    if (is_known) node = index_->node_of(prefix.pages[static_cast<std::size_t>(page - before)]);
  }
  if (!own) return false;
  const int grid = snapshot_grid(), at = sequence.snapshot_at;
  const int next = at ? std::min(at, (first * spec_.page_tokens / grid + 1) * grid) : 0;
  if (building_.try_emplace(*own, Building{row.request, next}).second) request.building = own;
  return false;
}

void PagedKvPool::end_building(Request& request) {
  if (request.building) building_.erase(*request.building);
  request.building.reset();
}

void PagedKvPool::close(RequestId request) {
  const auto it = requests_.find(request);
  if (it != requests_.end() && !it->second.in_flight()) end_building(it->second);
}

Result<bool> PagedKvPool::promise(RequestId id, Request& request, const Sequence& sequence, const SequenceRow& row,
                                  std::span<const std::int32_t> found) {
  if (!limits_.on_demand || request.promised) return true;
  const int total = num_pages_ - 1;
  const std::int64_t most = spec_.max_tokens_per_request;
  const std::int64_t now = sequence.text_tokens() + row.num_tokens;
  const std::int64_t rest = request.max_tokens < 0 ? most : request.max_tokens;
  // Of an answer that was begun, `now` counts some of the rest too.
  const bool at_prompt = sequence.text_tokens() == 0 || row.num_tokens > 1;
  if (const int worst = pages_for(std::min(now + rest, most)); at_prompt && worst > total)
    return invalid_request("a prompt of " + std::to_string(now) + " tokens and an answer of up to " +
                           std::to_string(rest) + " need " + std::to_string(worst) + " pages of " +
                           std::to_string(spec_.page_tokens) + " tokens, and '" + spec_.name + "' has " +
                           std::to_string(total) + "; send a shorter prompt or a smaller max_tokens");
  const int target =
      std::min(total, pages_for(std::min(now + std::min<std::int64_t>(rest, limits_.promised_answer_tokens), most)));
  int to_come = target - request.num_pages();
  for (const std::int32_t page : found) to_come -= num_owners_[static_cast<std::size_t>(page)] > 0;
  bool alone = true;
  for (const auto& [other, each] : requests_) {
    if (!each.promised) continue;
    alone = false;
    to_come += std::max(0, each.promised_pages - each.num_pages());
  }
  if (!alone && num_owned() + to_come > total) {
    first_unpromised_ = id;
    return false;
  }
  request.promised = true;
  request.promised_pages = target;
  return true;
}

PagedKvPool::Request* PagedKvPool::youngest_with_pages(RequestId older) {
  Request* youngest = nullptr;
  RequestId found = older;
  for (auto& [id, each] : requests_) {
    if (id <= found || each.num_pages() == 0 || each.opaque() || each.leaving) continue;
    found = id;
    youngest = &each;
  }
  return youngest;
}

Result<Admit> PagedKvPool::make_room(const StepRow& row, int needed) {
  if (!limits_.on_demand) return needed <= num_available() ? Admit::ok : Admit::wait;
  const Request& request = requests_.at(row.request);
  if (request.leaving || !request.promised) return Admit::wait;  // an older row took its pages in this round
  if (needed == 0) return Admit::ok;
  if (first_waiting_ < row.request) return Admit::wait;
  int coming = 0;
  while (needed > num_available() + coming && !row.ahead) {
    Request* const victim = youngest_with_pages(row.request);
    if (!victim) break;
    if (victim->in_flight()) {
      victim->leaving = true;
      coming += victim->num_pages();
    } else {
      preempt(*victim);
    }
  }
  if (needed <= num_available()) return Admit::ok;
  if (row.ahead) return Admit::wait;
  first_waiting_ = row.request;
  const bool alone = std::all_of(requests_.begin(), requests_.end(), [&](const auto& each) {
    return each.first == row.request || each.second.num_pages() == 0;
  });
  if (!alone) return Admit::wait;
  return exhausted("'" + spec_.name + "' has " + std::to_string(num_pages_ - 1) + " pages of " +
                   std::to_string(spec_.page_tokens) + " tokens, which is too few for this request");
}

void PagedKvPool::preempt(Request& request) {
  for (Sequence& sequence : request.sequences) {
    while (!sequence.pages.empty()) {
      release_page(sequence.pages.back());
      sequence.pages.pop_back();
    }
    sequence.committed_tokens = sequence.planned_tokens = 0;
    sequence.num_sealed = 0;
    sequence.snapshot_at = sequence.last_snapshot = sequence.answer_snapshot = 0;
  }
  end_building(request);
  request.promised = request.leaving = false;
  ++num_preempted_;
}

void PagedKvPool::settle(Request& request) {
  for (Sequence& sequence : request.sequences) {
    if (!sequence.cut || sequence.num_in_flight > 0) continue;
    const auto [length, keep_pages] = *sequence.cut;
    sequence.cut.reset();
    if (sequence.text_tokens() <= length) continue;
    if (!sequence.opaque) sequence.text.resize(static_cast<std::size_t>(length));
    const int stands = keep_pages || sequence.opaque ? std::min(sequence.committed_tokens, length) : 0;
    sequence.committed_tokens = sequence.planned_tokens = stands;
    sequence.num_sealed = std::min(sequence.num_sealed, stands / spec_.page_tokens);
    sequence.snapshot_at = sequence.last_snapshot = sequence.answer_snapshot = 0;
    release_tail(sequence);
  }
  if (request.leaving && !request.in_flight()) preempt(request);
}

// A page that the cache holds already is let go for that one, so that whoever owns a page owns those above it.
void PagedKvPool::seal(const Request& request, Sequence& sequence) {
  if (!index_) return;
  const auto size = static_cast<std::size_t>(spec_.page_tokens);
  for (; (sequence.num_sealed + 1) * spec_.page_tokens <= sequence.committed_tokens; ++sequence.num_sealed) {
    const auto at = static_cast<std::size_t>(sequence.num_sealed);
    std::int32_t& page = sequence.pages[at];
    if (index_->node_of(page) != PrefixIndex::kNone) continue;  // a fork's, too
    const std::span<const std::int32_t> ids(sequence.text.data() + at * size, size);
    const PrefixIndex::Node parent = at ? index_->node_of(sequence.pages[at - 1]) : request.root;
    const std::int32_t other = index_->find(parent, ids);
    if (other == 0) {
      index_->add(parent, ids, page);
    } else {
      own_page(other);
      release_page(page);
      page = other;
    }
  }
}

std::span<const std::int32_t> PagedKvPool::text(RequestId request, int label) const {
  const Sequence* const sequence = find(request, label);
  return sequence ? std::span<const std::int32_t>(sequence->text) : std::span<const std::int32_t>();
}

int PagedKvPool::text_length(RequestId request, int label) const {
  const Sequence* const sequence = find(request, label);
  if (!sequence) return 0;
  return sequence->opaque ? sequence->planned_tokens : sequence->text_tokens() + sequence->num_new_in_flight;
}

void PagedKvPool::truncate(RequestId request, int label, int length, bool keep_pages) {
  Sequence* const sequence = find(request, label);
  if (!sequence) return;
  sequence->cut = {length, keep_pages};
  settle(requests_.at(request));
}

std::int64_t PagedKvPool::cached_tokens(RequestId request) const {
  const auto it = requests_.find(request);
  return it == requests_.end() || !index_ ? -1 : it->second.cached_tokens;
}

}  // namespace mstar::resource
