// Paged keys and values of a decoder: one list of pages per (request, label), page 0 is the sink of padding rows.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "mstar/resource/prefix_index.h"
#include "mstar/resource/resource.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::resource {

// What is left of a row that appends tokens to a label.
struct SequenceRow {
  RequestId request;
  int label = 0;
  int num_tokens = 0;
  std::span<const std::int32_t> ids = {};  // of them; empty when the host does not know them
  bool restart = false;
  bool ahead = false;
};
// Where it stands.
struct OpenRow {
  bool ready = false;   // false: the row waits
  bool begun = false;   // a restart is done
  int begin = 0;        // tokens that stand before those that run next
  int num_missing = 0;  // tokens of the label's text from there on, to be computed again before the row's own
  int num_found = 0;    // of the row's own tokens, the first: they stand now, found in the cache
  int snapshot = -1;    // what the state beside the pages is to be restored from before the row runs; -1: it stands
  int keep_at = 0;      // the state is to be kept after so many tokens of the label; 0: nowhere
  int cut_at = 0;       // the part that runs next must not go beyond, for another snapshot follows keep_at; 0: anywhere
};

// A fork shares pages; a page is copied when one of its owners is about to write into it, or when the prefix cache
// holds it. Invariant at every quiescent point: free + owned (by one label or several) + cached = total; page 0 is none
// of them.
//
// A label whose rows tell their ids has a text. Its full pages are put into a PrefixIndex (where the resource has a
// prefix cache), for other requests with the same text and salt; they stay there when their owners are gone, until
// their memory is asked for.
//
// Where other state follows the tokens (PoolLimits::state_snapshots > 0), pages alone are not enough to go on from. The
// index then gives some pages the number of a snapshot of that state, and a row takes over pages up to the last one
// that has one. Snapshots are taken where rows end at a multiple of snapshot_tokens, which parts of prompts prefer
// (token_budget.h), and at OpenRow::keep_at, by the step that passes it or ends there: where a text leaves another one
// that goes on differently, and near the end of a prompt. Each of these must be snapshot_tokens / 4 from the one
// before.
//
// Claims: a request gets its worst case when it is added. With PoolLimits::on_demand it gets nothing but, at its first
// row, the promise of pages for its prompt and the first tokens of its answer, beside those promised to others; pages
// are granted as rows ask for them. When none are left, cached ones go first, then the youngest request with pages
// loses all of them: its text stays, and is computed again when its turn comes. A request only ever takes from younger
// ones, so the oldest always ends. Refused for good is only what could not run alone.
class PagedKvPool final : public Resource {
 public:
  static Result<std::unique_ptr<PagedKvPool>> create(const decl::PagedKv& spec, const PoolLimits& limits,
                                                     Device& device);
  static std::size_t planned_bytes(const decl::PagedKv& spec, const PoolLimits& limits);

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override;
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow& row) override;
  Status plan(const StepRows& rows, Stream stream) override;
  // Its tokens' ids are not told: the label has no text from now on.
  void commit(const StepRow& row) override { commit(row, std::span<const std::int32_t>()); }
  void rollback(const StepRow& row) override;
  // Of each label its text, its numbers, and keys and values of the tokens that stand. Where there is no room for them,
  // a label with a text has that alone afterwards, and its tokens are computed again; exhausted where it has none.
  Result<Values> take_out(RequestId request) override;
  Status put_in(RequestId request, const Values& values) override;
  // Cost: O(pages) on the host; no bytes move.
  Status fork(RequestId request, int from_label, int to_label, Stream stream) override;
  Usage usage() const override;
  std::uint64_t digest() const override;
  std::int64_t cached_tokens(RequestId request) const override;

  // ---- rows of components with chunked_prefill
  // Before the rows of one step are opened.
  void begin_round() { first_waiting_ = first_unpromised_ = RequestId(); }
  // Before a row is admitted, and again for each part of it. invalid_request: it does not fit into the context, or the
  // request can never have the pages that it may need.
  Result<OpenRow> open(const SequenceRow& row);
  // A row that was opened and not admitted.
  void close(RequestId request);
  // For an admitted row that passes OpenRow::keep_at: the number of the snapshot in which its step is to keep the state
  // there (RowDemand::kept_snapshot), which is nobody's until the row is committed or rolled back. -1: rows in flight
  // have all that there are.
  int reserve_snapshot(RequestId request, int label);
  // `ids` of the row's tokens but the recomputed ones. What the step kept belongs to the text now. Returns the snapshot
  // in which the state after these tokens is to be kept too, or -1.
  int commit(const StepRow& row, std::span<const std::int32_t> ids);
  // Valid until the label's next commit.
  std::span<const std::int32_t> text(RequestId request, int label) const;
  // Tokens of the label, those in flight and those to be computed again too.
  int text_length(RequestId request, int label) const;
  // Forgets the tokens from `length` on, once the rows of the label that are in flight have ended. With `keep_pages`
  // false those before are computed again: there is other state beside them, which cannot be cut short.
  void truncate(RequestId request, int label, int length, bool keep_pages);
  int page_tokens() const { return spec_.page_tokens; }
  // The grid of snapshots; a page where there are none.
  int snapshot_grid() const { return keeps_state() ? limits_.snapshot_tokens : spec_.page_tokens; }

  // Keys and values of one layer for the rows planned in `slot`, lengths counting this step's tokens.
  PagedKvView view(int layer, int slot) const;
  // Position of each token of the step: [num_tokens] i32.
  const std::int32_t* positions(int slot) const { return slots_[slot].arrays.on_device(kPositions); }
  RaggedView ragged(int slot) const;
  // Committed tokens of a request's label; 0 when unknown.
  int length(RequestId request, int label = 0) const;
  // Forgets the tokens of a label but keeps the claim (a new window starts). Rows in flight end without a trace.
  void clear(RequestId request, int label = 0);
  int free_pages() const { return static_cast<int>(free_.size()); }
  // Whether free, owned and cached pages are all there are, each only once, and owned as often as sequences hold it;
  // and likewise snapshots. For tests and quiescent points. Cost: O(pages).
  bool adds_up() const;

 private:
  struct Sequence {
    std::vector<std::int32_t> pages;
    int committed_tokens = 0;
    int planned_tokens = 0;  // committed plus in flight
    int num_stale = 0;       // rows in flight, the oldest, that a restart has made void
    int num_in_flight = 0;
    std::vector<std::int32_t> text;  // ids; longer than committed_tokens while some must be computed again
    int num_new_in_flight = 0;       // tokens in flight that come to the text
    bool part_in_flight = false;     // the row in flight does not end
    bool opaque = false;             // it has tokens whose ids were not told
    int num_sealed = 0;              // pages, the first, that are in the index
    struct Cut {
      int length = 0;
      bool keep_pages = true;
    };
    std::optional<Cut> cut;   // to come
    int snapshot_at = 0;      // OpenRow::keep_at of the row that was opened last
    int kept_snapshot = -1;   // that the row in flight keeps
    int last_snapshot = 0;    // tokens before the last one that was taken or restored
    int answer_snapshot = 0;  // likewise before the last one of single tokens
    void forget();
    // Whether the oldest row in flight is void; it leaves the flight either way.
    bool end_oldest();
    int text_tokens() const { return opaque ? committed_tokens : static_cast<int>(text.size()); }
  };
  struct Request {
    std::vector<Sequence> sequences;  // by label
    std::int64_t max_tokens = -1;
    PrefixIndex::Node root = PrefixIndex::kNone;
    bool promised = false;
    int promised_pages = 0;
    bool leaving = false;                   // loses its pages when its rows in flight have ended
    std::optional<std::uint64_t> building;  // the next page of a row of it
    std::int64_t cached_tokens = 0;
    int num_pages() const;
    bool in_flight() const;
    bool opaque() const;
  };
  // Pages that continue a text.
  struct Prefix {
    std::vector<std::int32_t> pages;  // known ones, from the first that does not stand
    int num_usable = 0;               // of them, the first: the row may take them over
    bool is_branch = false;           // behind them others go on differently
  };
  // A page that an opened row or one in flight computes.
  struct Building {
    RequestId request;
    int snapshot_at = 0;  // the next one that it may take, with state beside the pages; 0: none
  };
  enum Array { kLengths, kOffsets, kPositions, kPageTable };
  struct Slot {
    PlanArrays arrays;
    int num_rows = 0;
    int num_tokens = 0;
  };
  PagedKvPool(const decl::PagedKv& spec, const PoolLimits& limits, Device& device)
      : spec_(spec), limits_(limits), device_(device) {}
  int pages_for(std::int64_t tokens) const {
    return static_cast<int>((tokens + spec_.page_tokens - 1) / spec_.page_tokens);
  }
  int pages_per_sequence() const { return pages_for(spec_.max_tokens_per_request); }
  Sequence* find(const StepRow& row) { return find(row.request, row.demand.label); }
  Sequence* find(RequestId request, int label);
  const Sequence* find(RequestId request, int label) const {
    return const_cast<PagedKvPool*>(this)->find(request, label);
  }
  void plan_row(Slot& slot, int index, const Sequence* sequence, const StepRow& row, std::int32_t first_token) const;

  // ---- pages (paged_kv_pages.cc)
  int num_available() const { return static_cast<int>(free_.size()) + (index_ ? index_->num_idle() : 0); }
  int num_owned() const { return num_pages_ - 1 - num_available(); }
  std::int32_t take_page();
  void own_page(std::int32_t page);
  void release_page(std::int32_t page);
  void release_tail(Sequence& sequence);
  bool is_shared(std::int32_t page) const;
  // Pages that it takes to write positions [begin, end).
  int num_new_pages(const Sequence& sequence, int begin, int end) const;
  // Gives the sequence pages of its own for positions [begin, end), keeping what stands before `begin`. There must be
  // as many as it takes.
  void make_writable(Sequence& sequence, int begin, int end);
  void copy_page(std::int32_t from, std::int32_t to);

  // ---- requests that move (resource_moves.cc)
  Dims moved_dims(int num_tokens) const;
  // Calls visit(place on the device, place in the bytes, bytes) for each stretch of the sequence's first tokens.
  template <class Visit>
  void for_each_stretch(const std::vector<std::int32_t>& pages, int num_tokens, Visit&& visit) const;

  // ---- sequences (paged_kv_sequences.cc)
  Prefix find_prefix(const Request& request, const Sequence& sequence, const SequenceRow& row) const;
  std::vector<std::int32_t> page_ids(const Sequence& sequence, const SequenceRow& row, int page) const;
  // Tokens of the label once the row has ended.
  static int length_after(const Sequence& sequence, const SequenceRow& row) {
    return static_cast<int>(sequence.text.size()) + row.num_tokens;
  }
  // Whether another row computes what the row needs next; else the row is known to.
  bool waits_for_others(Request& request, const Sequence& sequence, const SequenceRow& row, const Prefix& prefix);
  void take_over(Request& request, Sequence& sequence, const SequenceRow& row, const Prefix& prefix, int missing,
                 OpenRow& out);
  void end_building(Request& request);
  // Of a label that comes from another worker.
  Result<bool> has_room_for(RequestId id, int label, int num_tokens);
  Result<bool> promise(RequestId id, Request& request, const Sequence& sequence, const SequenceRow& row,
                       std::span<const std::int32_t> found);
  Result<Admit> make_room(const StepRow& row, int needed);
  Request* youngest_with_pages(RequestId older);
  void preempt(Request& request);
  // What waited for the rows in flight.
  void settle(Request& request);
  void seal(const Request& request, Sequence& sequence);

  // ---- snapshots of the state beside the pages (paged_kv_snapshots.cc)
  bool keeps_state() const { return index_ && limits_.state_snapshots > 0; }
  int least_gain() const { return std::max(spec_.page_tokens, limits_.snapshot_tokens / 4); }
  // OpenRow::keep_at and cut_at of a row that takes over the usable pages of the prefix.
  struct Snaps {
    int keep_at = 0, cut_at = 0;
  };
  Snaps next_snaps(const Sequence& sequence, const SequenceRow& row, const Prefix& prefix) const;
  // Of what stands now; what commit returns.
  int take_snapshot(Sequence& sequence, const RowDemand& demand);
  // The one that a step kept `length` tokens into the text: now it is known, or of no use.
  // Whether what the sequence has reserved is this row's: not of one that its label has left behind.
  static bool keeps(const Sequence& sequence, const RowDemand& demand) {
    return demand.kept_tokens > 0 && demand.kept_snapshot == sequence.kept_snapshot;
  }
  void give_kept(Sequence& sequence, int length);
  void drop_kept(Sequence& sequence);
  std::int32_t page_before(const Sequence& sequence, int tokens) const {
    return sequence.pages[static_cast<std::size_t>(tokens / spec_.page_tokens - 1)];
  }

  decl::PagedKv spec_;
  PoolLimits limits_;
  Device& device_;
  int num_pages_ = 0;
  Tensor storage_;  // [layers, 2, num_pages, page_tokens, kv_heads, head_dim]
  std::vector<std::int32_t> free_;
  std::vector<std::uint16_t> num_owners_;  // sequences that hold each page
  int claimed_pages_ = 0;
  std::unordered_map<RequestId, Request> requests_;
  std::vector<Slot> slots_;
  std::optional<PrefixIndex> index_;  // none: no prefix cache
  std::unordered_map<std::uint64_t, Building> building_;
  // Of this round. Before the one nobody younger takes pages, before the other nobody younger is promised any.
  RequestId first_waiting_, first_unpromised_;
  std::int64_t num_preempted_ = 0, found_tokens_ = 0;
};

}  // namespace mstar::resource
