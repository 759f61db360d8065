// Resources: state that outlives a step. Every one follows the same life: add -> (admit -> plan -> commit | rollback)*
// -> remove.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/ids.h"
#include "mstar/base/result.h"
#include "mstar/base/value.h"
#include "mstar/decl/request.h"
#include "mstar/decl/resource.h"
#include "mstar/device/device.h"

namespace mstar::resource {

// What one row of a step asks of the resources of its component.
struct RowDemand {
  int tokens = 0;          // appended to paged KV and counted by positions
  int context_tokens = 0;  // written to cross KV in this step
  bool samples = false;    // takes a sampler row
  float temperature = -1;  // of this row's draw, in place of its request's; below 0: that
  int label = 0;           // index into the KV's labels
  bool restart = false;    // forgets the label's earlier tokens first (a new window of the same request)
  // Set by the engine for components with chunked_prefill.
  int recomputed = 0;        // of `tokens`, the first: the label's text held them already, their pages were taken away
  bool starts_over = false;  // recurrent state begins from zeros: these tokens are the label's first
  bool ends = true;          // the row's last token is among them; before, there are no outputs and nothing is sampled
  // After the first so many of `tokens` the step keeps the row's recurrent states too, in the snapshot of this number
  // (PagedKvPool::reserve_snapshot); 0: it does not.
  int kept_tokens = 0;
  int kept_snapshot = -1;
};

// A row with an invalid request id pads a captured bucket: it is only planned, and lands on page 0 and slot 0.
struct StepRow {
  RequestId request;
  RowDemand demand;
  bool ahead = false;  // launched before it is certain: nobody gives up anything for it
};

// The rows of one step, laid end to end: row r owns tokens [token_offsets[r], token_offsets[r+1]).
struct StepRows {
  std::vector<StepRow> rows;
  std::vector<std::int32_t> token_offsets = {0};
  int slot = 0;  // which plan buffers this step writes, < PoolLimits::num_plan_slots
  // Of a graph for rows of any lengths (CaptureSpec::packed): each row has its place in all that is planned, whatever
  // it asks for.
  bool packed = false;

  int num_rows() const { return static_cast<int>(rows.size()); }
  int num_tokens() const { return token_offsets.back(); }
  void add(StepRow row) {
    token_offsets.push_back(token_offsets.back() + row.demand.tokens);
    rows.push_back(row);
  }
};

enum class Admit : std::uint8_t { ok, wait };

struct Usage {
  std::string name;
  std::int64_t used = 0;  // pages, slots or rows
  std::int64_t total = 0;
  std::size_t bytes = 0;  // of device memory
  // Of paged KV; free + used + cached = total.
  std::int64_t cached = 0;         // pages that no request owns, kept for prompts that begin as they do
  std::int64_t num_preempted = 0;  // so often a request's pages were taken away for an older one
  std::int64_t found_tokens = 0;   // prompt tokens that were not computed, for the cache held them
  std::int64_t num_snapshots = 0;  // of recurrent state, kept for texts that go on from there
};

// Plan slots of one component: a step is planned while the one before it runs. Components that share a resource each
// need their own, since their steps interleave.
inline constexpr int kNumSlots = 2;

// Owner thread: the worker's step loop, for every call.
class Resource {
 public:
  virtual ~Resource() = default;
  // Claims the worst case of the request (planners that promise less may wait in admit). exhausted: nothing was
  // claimed.
  virtual Status add_request(RequestId request, const decl::RequestParams& params) = 0;
  // Gives everything back. Unknown requests are ignored: a request may fail before it was added.
  virtual void remove_request(RequestId request) = 0;
  // Grants what one row needs for its next step, on top of the rows in flight. An Error fails that row alone; after ok
  // the row must be planned and then committed or rolled back, or be withdrawn.
  virtual Result<Admit> admit(const StepRow& row) = 0;
  // Takes back the latest admit of the row's request.
  virtual void withdraw(const StepRow& row) = 0;
  // Fills the plan buffers of rows.slot for admitted rows, before a later step admits. internal when a row is unknown;
  // then the slot holds nothing of use. On `stream` it only uploads what the step before in this slot, which has ended,
  // was the last to read. Cost: O(rows + tokens), no allocation after warmup.
  virtual Status plan(const StepRows& rows, Stream stream) = 0;
  // End the oldest row in flight of the request: steps finish in the order in which they were admitted. After a
  // rollback the rows behind it must be rolled back too, for they follow tokens that never were. Removed requests are
  // ignored.
  virtual void commit(const StepRow& row) = 0;
  virtual void rollback(const StepRow& row) = 0;
  // Whether a rollback brings back what was there before the row, so that rows may be launched that perhaps never come
  // to be. False: components with this resource never run ahead. Rows that restart or write a context cannot be taken
  // back in any resource.
  virtual bool can_roll_back() const { return true; }
  // Makes a label of the request equal to another as it stands after the rows admitted so far; what `to_label` held is
  // gone. Steps launched before it on `stream` are seen, later ones not. Resources without labels are never asked.
  // internal when the request or a label is unknown.
  virtual Status fork(RequestId request, int from_label, int to_label, Stream stream);
  // What the request keeps here, as bytes of the host for put_in() of the same resource on another worker; it keeps its
  // place here, and nothing in it. None of its rows is in flight. internal when it is unknown, or cannot leave. Waits
  // for the device.
  virtual Result<Values> take_out(RequestId request);
  // In place of what the request keeps here; none of its rows is in flight. internal when it is unknown, or the values
  // are not those of such a resource; exhausted. Waits for the device.
  virtual Status put_in(RequestId request, const Values& values);
  // Prompt tokens of the request that were found in a cache; -1: there is none.
  virtual std::int64_t cached_tokens(RequestId) const { return -1; }
  virtual Usage usage() const = 0;
  // The same on ranks that were asked the same in one order: numbers and lengths, not where things lie.
  // Cost: O(requests).
  virtual std::uint64_t digest() const;
};

// Sizes of the pools, decided before anything is allocated.
struct PoolLimits {
  int max_requests = 16;
  int max_rows = 16;    // of one step
  int max_tokens = 64;  // of one step
  int num_plan_slots = kNumSlots;
  // Ranks of the group that works in step, among which heads are shared out (see heads_per_rank). Resources of
  // components that are not cut are whole on each (engine::ResourceSet).
  int head_shards = 1;
  // ---- of paged KV
  bool prefix_cache = true;          // false: also where the resource declares one
  int promised_answer_tokens = 256;  // of a request's answer, that must find room beside its prompt before it begins
  // Set by engine::ResourceSet, from the declaration (see PagedKvPool).
  bool on_demand = false;
  int state_snapshots = 0;  // > 0: other state follows the tokens, and so many copies of it are kept
  int snapshot_tokens = 0;  // at multiples of them
};

// Heads that each of `head_shards` ranks holds of `heads`: an even share, or one that several ranks hold where there
// are fewer heads than ranks. bad_model, naming the resource, where they do not divide.
Result<int> heads_per_rank(const std::string& name, int heads, int head_shards);

// Device bytes that make_resource would allocate, for the memory plan.
std::size_t planned_bytes(const decl::ResourceSpec& spec, const PoolLimits& limits);
// exhausted when the device has no room; bad_model when the spec is not supported on this build.
Result<std::unique_ptr<Resource>> make_resource(const decl::ResourceSpec& spec, const PoolLimits& limits,
                                                Device& device);

// Whether take_out() and put_in() are for resources of this kind.
bool can_move(const decl::ResourceSpec& spec);

// bad_model, naming the resource, unless all are at least 1.
Status check_positive(const std::string& name, std::span<const std::int64_t> sizes);
Status check_positive(const std::string& name, std::initializer_list<std::int64_t> sizes);
Status check_limits(const PoolLimits& limits, const std::string& name);

// A plan buffer: written on the host, read on the device; one copy per step where they differ.
class PlanBuffer {
 public:
  static Result<PlanBuffer> create(Device& device, std::size_t count);
  PlanBuffer() = default;
  PlanBuffer(PlanBuffer&& other) noexcept { *this = std::move(other); }
  PlanBuffer& operator=(PlanBuffer&& other) noexcept;
  ~PlanBuffer();
  std::span<std::int32_t> host() const { return {host_, count_}; }
  const std::int32_t* on_device() const { return device_pointer_; }
  void upload(std::size_t count, Stream stream) const;

 private:
  Device* device_ = nullptr;
  std::int32_t* host_ = nullptr;
  std::int32_t* device_pointer_ = nullptr;
  std::size_t count_ = 0;
};

// Several plan arrays in one buffer, so that a step sends them in one copy.
class PlanArrays {
 public:
  static Result<PlanArrays> create(Device& device, std::span<const std::size_t> counts);
  PlanArrays() = default;
  std::span<std::int32_t> host(int array) const {
    const auto at = static_cast<std::size_t>(array);
    return buffer_.host().subspan(starts_[at], counts_[at]);
  }
  const std::int32_t* on_device(int array) const {
    return buffer_.on_device() + starts_[static_cast<std::size_t>(array)];
  }
  // All arrays whole but the last, of which the first `count` elements.
  void upload(std::size_t count, Stream stream) const { buffer_.upload(starts_.back() + count, stream); }

 private:
  PlanBuffer buffer_;
  std::vector<std::size_t> starts_, counts_;
};

}  // namespace mstar::resource
