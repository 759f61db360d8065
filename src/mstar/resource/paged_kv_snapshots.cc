// Where a prefix cache beside recurrent state takes its snapshots.
#include <utility>

#include "mstar/resource/paged_kv.h"

namespace mstar::resource {
namespace {

// The next turn of a chat often differs from this one's prompt in its last tokens, which open the answer.
constexpr int kTailTokens = 8;

}  // namespace

PagedKvPool::Snaps PagedKvPool::next_snaps(const Sequence& sequence, const SequenceRow& row,
                                           const Prefix& prefix) const {
  if (!keeps_state() || static_cast<int>(row.ids.size()) != row.num_tokens) return {};
  const int begin = (sequence.num_sealed + prefix.num_usable) * spec_.page_tokens;
  int last = prefix.num_usable > 0 ? begin : sequence.last_snapshot;
  const auto pays = [&](int at) { return at > begin && at - last >= least_gain(); };
  const int known = (sequence.num_sealed + static_cast<int>(prefix.pages.size())) * spec_.page_tokens;
  const bool at_branch = prefix.is_branch && pays(known);
  if (at_branch) last = known;
  const int tail = (length_after(sequence, row) - kTailTokens) / spec_.page_tokens * spec_.page_tokens;
  const bool at_tail = row.num_tokens > 1 && pays(tail);
  if (at_branch) return {.keep_at = known, .cut_at = at_tail ? known : 0};
  return {.keep_at = at_tail ? tail : 0};
}

int PagedKvPool::take_snapshot(Sequence& sequence, const RowDemand& demand) {
  const int length = sequence.committed_tokens;
  if (!keeps_state() || length == 0 || length != sequence.num_sealed * spec_.page_tokens) return -1;
  if (length != sequence.snapshot_at && length % limits_.snapshot_tokens != 0) return -1;
  const std::int32_t page = page_before(sequence, length);
  sequence.last_snapshot = length;
  if (index_->snapshot_of(page) >= 0) {
    index_->use_snapshot(page);
    return -1;
  }
  // Of an answer the last one alone is worth its memory, but for those that somebody went on from.
  if (const int former = demand.tokens > 1 ? 0 : std::exchange(sequence.answer_snapshot, length); former > 0)
    if (const std::int32_t old = page_before(sequence, former); index_->snapshot_of(old) >= 0 && !index_->was_used(old))
      index_->drop_snapshot(old);
  const int taken = index_->take_snapshot();
  if (taken >= 0) index_->give_snapshot(taken, page);
  return taken;
}

int PagedKvPool::reserve_snapshot(RequestId request, int label) {
  Sequence* const sequence = find(request, label);
  if (!sequence || !index_) return -1;
  drop_kept(*sequence);
  return sequence->kept_snapshot = index_->take_snapshot();
}

void PagedKvPool::give_kept(Sequence& sequence, int length) {
  const std::int32_t page = page_before(sequence, length);
  sequence.last_snapshot = length;
  if (index_->snapshot_of(page) < 0) {
    index_->give_snapshot(std::exchange(sequence.kept_snapshot, -1), page);
  } else {
    index_->use_snapshot(page);
  }
}

void PagedKvPool::drop_kept(Sequence& sequence) {
  if (const int kept = std::exchange(sequence.kept_snapshot, -1); kept >= 0) index_->give_back_snapshot(kept);
}

}  // namespace mstar::resource
