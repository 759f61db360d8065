// Where a prefix cache beside recurrent state takes its snapshots.
#include <utility>

#include "mstar/resource/paged_kv.h"

namespace mstar::resource {
namespace {

// The next turn of a chat often differs from this one's prompt in its last tokens, which open the answer.
constexpr int kTailTokens = 8;

}  // namespace

int PagedKvPool::next_cut(const Sequence& sequence, const SequenceRow& row, const Prefix& prefix) const {
  if (!keeps_state() || static_cast<int>(row.ids.size()) != row.num_tokens) return 0;
  const int begin = (sequence.num_sealed + prefix.num_usable) * spec_.page_tokens;
  const int last = prefix.num_usable > 0 ? begin : sequence.last_snapshot;
  const auto pays = [&](int cut) { return cut > begin && cut - last >= least_gain(); };
  const int known = (sequence.num_sealed + static_cast<int>(prefix.pages.size())) * spec_.page_tokens;
  if (prefix.is_branch && pays(known)) return known;
  const int tail = (length_after(sequence, row) - kTailTokens) / spec_.page_tokens * spec_.page_tokens;
  return row.num_tokens > 1 && pays(tail) ? tail : 0;
}

int PagedKvPool::take_snapshot(Sequence& sequence, const RowDemand& demand) {
  const int length = sequence.committed_tokens;
  if (!keeps_state() || length == 0 || length != sequence.num_sealed * spec_.page_tokens) return -1;
  if (length != sequence.snapshot_at && length % limits_.snapshot_tokens != 0) return -1;
  const auto page_before = [&](int tokens) {
    return sequence.pages[static_cast<std::size_t>(tokens / spec_.page_tokens - 1)];
  };
  sequence.last_snapshot = length;
  if (index_->snapshot_of(page_before(length)) >= 0) {
    index_->use_snapshot(page_before(length));
    return -1;
  }
  // Of an answer the last one alone is worth its memory, but for those that somebody went on from.
  if (const int former = demand.tokens > 1 ? 0 : std::exchange(sequence.answer_snapshot, length); former > 0)
    if (const std::int32_t page = page_before(former); index_->snapshot_of(page) >= 0 && !index_->was_used(page))
      index_->drop_snapshot(page);
  return index_->add_snapshot(page_before(length));
}

}  // namespace mstar::resource
