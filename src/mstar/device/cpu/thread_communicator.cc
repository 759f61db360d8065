#include "mstar/device/cpu/thread_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "mstar/base/check.h"
#include "mstar/device/cpu/rank_sums.h"
#include "mstar/device/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mstar {
namespace {

constexpr int kSpins = 2000;  // ~10-20 us

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

enum class Operation : std::uint8_t { all_reduce, all_gather, all_to_all, broadcast };

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_to_all:
      return "all_to_all";
    default:
      return "broadcast";
  }
}

// What a rank asks for. All but the pointers must agree.
struct Call {
  Operation operation = Operation::all_reduce;
  std::size_t count = 0;
  DType dtype = DType::u8;
  int root = 0;
  std::byte* data = nullptr;

  bool agrees_with(const Call& other) const {
    return operation == other.operation && count == other.count && dtype == other.dtype && root == other.root;
  }
  std::string described() const {
    return std::string(name_of(operation)) + " of " + std::to_string(count) + " " + std::string(dtype_name(dtype));
  }
};

class Group {
 public:
  explicit Group(int size) : calls_(static_cast<std::size_t>(size)) {
    if (make_cpu_plan().num_threads < size) spins_ = 0;  // who spins would keep the others from their work
  }
  int size() const { return static_cast<int>(calls_.size()); }
  std::size_t num_ranks() const { return calls_.size(); }
  const Call& call(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  void abort(std::string reason) {
    {
      const std::lock_guard lock(mutex_);
      if (!reason_) reason_ = std::move(reason);
      aborted_.store(true, std::memory_order_release);
    }
    wake_.notify_all();
  }
  Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_locked();
  }

  // Waits until every rank has begun a call, and sees that they agree. After ok every rank leaves, whatever happens
  // meanwhile, so that none loses memory that another reads.
  Status enter(int rank, const Call& call) {
    {
      const std::lock_guard lock(mutex_);
      if (reason_) return failure_locked();
      calls_[static_cast<std::size_t>(rank)] = call;
    }
    if (!arrive(true)) return failure();
    for (int other = 0; other < size(); ++other) {
      if (call.agrees_with(calls_[static_cast<std::size_t>(other)])) continue;
      const Error error =
          internal_error("ranks call different things: " + call.described() + " on rank " + std::to_string(rank) +
                         ", " + this->call(other).described() + " on rank " + std::to_string(other));
      abort(error.message);
      return error;
    }
    return ok_status();
  }
  // Waits until every rank has done its part.
  void leave() { arrive(false); }

 private:
  Status failure_locked() const {
    return reason_ ? Status(unavailable("the group of ranks was ended: " + *reason_)) : ok_status();
  }

  // False when the group was aborted before all had arrived.
  bool arrive(bool may_abort) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (may_abort && reason_) return false;
      seen = round_.load(std::memory_order_relaxed);
      if (++num_arrived_ == size()) {
        num_arrived_ = 0;
        round_.store(seen + 1, std::memory_order_release);
        if (num_sleeping_ > 0) wake_.notify_all();
        return true;
      }
    }
    const auto is_over = [&] {
      return round_.load(std::memory_order_acquire) != seen || (may_abort && aborted_.load(std::memory_order_acquire));
    };
    for (int spin = 0; spin < spins_ && !is_over(); ++spin) relax();
    std::unique_lock lock(mutex_);
    ++num_sleeping_;
    wake_.wait(lock, is_over);
    --num_sleeping_;
    return round_.load(std::memory_order_relaxed) != seen;
  }

  std::vector<Call> calls_;  // by rank
  int spins_ = kSpins;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  int num_arrived_ = 0;
  int num_sleeping_ = 0;
  std::optional<std::string> reason_;
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> round_{0};
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank), from_(group_->num_ranks()), to_(group_->num_ranks()) {}
  ~ThreadCommunicator() override { group_->abort("rank " + std::to_string(rank_) + " is gone"); }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Status all_reduce(void* data, std::size_t count, DType dtype, Stream) override {
    if (!can_sum(dtype)) return internal_error("all_reduce of " + std::string(dtype_name(dtype)));
    MSTAR_TRY(group_->enter(rank_, {Operation::all_reduce, count, dtype, 0, static_cast<std::byte*>(data)}));
    for (int rank = 0; rank < size(); ++rank)
      from_[static_cast<std::size_t>(rank)] = to_[static_cast<std::size_t>(rank)] = group_->call(rank).data;
    const SumShare share = share_of(count, rank_, size());
    sum_in_rank_order(from_, to_, share.begin, share.end, dtype);
    group_->leave();
    return ok_status();
  }

  Status all_gather(const void* from, void* to, std::size_t bytes, Stream) override {
    auto* const own = static_cast<std::byte*>(const_cast<void*>(from));  // the others only read it
    MSTAR_TRY(group_->enter(rank_, {Operation::all_gather, bytes, DType::u8, 0, own}));
    for (int rank = 0; rank < size(); ++rank)
      copy(group_->call(rank).data, static_cast<std::byte*>(to) + static_cast<std::size_t>(rank) * bytes, bytes);
    group_->leave();
    return ok_status();
  }

  Status all_to_all(const void* from, void* to, std::size_t bytes, Stream) override {
    auto* const own = static_cast<std::byte*>(const_cast<void*>(from));  // the others only read it
    MSTAR_TRY(group_->enter(rank_, {Operation::all_to_all, bytes, DType::u8, 0, own}));
    for (int rank = 0; rank < size(); ++rank)
      copy(group_->call(rank).data + static_cast<std::size_t>(rank_) * bytes,
           static_cast<std::byte*>(to) + static_cast<std::size_t>(rank) * bytes, bytes);
    group_->leave();
    return ok_status();
  }

  Status broadcast(void* data, std::size_t bytes, int root, Stream) override {
    if (root < 0 || root >= size()) return internal_error("broadcast from rank " + std::to_string(root));
    MSTAR_TRY(group_->enter(rank_, {Operation::broadcast, bytes, DType::u8, root, static_cast<std::byte*>(data)}));
    copy(group_->call(root).data, static_cast<std::byte*>(data), bytes);
    group_->leave();
    return ok_status();
  }

  void abort(std::string reason) override { group_->abort(std::move(reason)); }
  Status failure() const override { return group_->failure(); }

 private:
  static void copy(const std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }

  std::shared_ptr<Group> group_;
  int rank_;
  std::vector<const std::byte*> from_;  // of one sum: the ranks' arrays
  std::vector<std::byte*> to_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_group(int size) {
  MSTAR_CHECK(size >= 1, "a group without ranks");
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int rank = 0; rank < size; ++rank) out.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  return out;
}

}  // namespace mstar
