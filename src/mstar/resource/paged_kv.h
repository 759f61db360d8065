// Paged keys and values of a decoder: one list of pages per (request, label), page 0 is the sink of padding rows.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/resource/resource.h"
#include "mstar/tensor/kv_view.h"

namespace mstar::resource {

// A fork shares pages; a page is copied when one of its owners is about to write into it. Invariant at every quiescent
// point: free + owned (by one label or several) = total; page 0 is neither.
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
  void commit(const StepRow& row) override;
  void rollback(const StepRow& row) override;
  // Cost: O(pages) on the host; no bytes move.
  Status fork(RequestId request, int from_label, int to_label, Stream stream) override;
  Usage usage() const override;

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

 private:
  struct Sequence {
    std::vector<std::int32_t> pages;
    int committed_tokens = 0;
    int planned_tokens = 0;  // committed plus in flight
    int num_stale = 0;       // rows in flight, the oldest, that a restart has made void
    int num_in_flight = 0;
    void forget();
    // Whether the oldest row in flight is void; it leaves the flight either way.
    bool end_oldest();
  };
  enum Array { kLengths, kOffsets, kPositions, kPageTable };
  struct Slot {
    PlanArrays arrays;
    int num_rows = 0;
    int num_tokens = 0;
  };
  PagedKvPool(const decl::PagedKv& spec, const PoolLimits& limits, Device& device)
      : spec_(spec), limits_(limits), device_(device) {}
  int pages_for(int tokens) const { return (tokens + spec_.page_tokens - 1) / spec_.page_tokens; }
  int pages_per_sequence() const { return pages_for(spec_.max_tokens_per_request); }
  std::int32_t take_page();
  void release_page(std::int32_t page);
  void release_tail(Sequence& sequence);
  // Gives the sequence pages of its own for positions [begin, end), keeping what stands before `begin`; false, and
  // nothing has changed, when too few are free.
  bool make_writable(Sequence& sequence, int begin, int end);
  void copy_page(std::int32_t from, std::int32_t to);
  Sequence* find(const StepRow& row) { return find(row.request, row.demand.label); }
  Sequence* find(RequestId request, int label);
  void plan_row(Slot& slot, int index, const Sequence* sequence, const StepRow& row, std::int32_t first_token) const;

  decl::PagedKv spec_;
  PoolLimits limits_;
  Device& device_;
  int num_pages_ = 0;
  Tensor storage_;  // [layers, 2, num_pages, page_tokens, kv_heads, head_dim]
  std::vector<std::int32_t> free_;
  std::vector<std::uint16_t> num_owners_;  // sequences that hold each page
  int claimed_pages_ = 0;
  std::unordered_map<RequestId, std::vector<Sequence>> requests_;  // one Sequence per label
  std::vector<Slot> slots_;
};

}  // namespace mstar::resource
