#include "mstar/device/cuda/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "mstar/device/cuda/nccl_library.h"

namespace mstar {
namespace {

class NcclEnd;

// What the ends of one process share: why the group has ended, and who is to be told.
class NcclGroup {
 public:
  void add(NcclEnd& end) {
    const std::lock_guard lock(mutex_);
    ends_.push_back(&end);
  }
  void remove(NcclEnd& end) {
    const std::lock_guard lock(mutex_);
    ends_.erase(std::remove(ends_.begin(), ends_.end(), &end), ends_.end());
  }
  void abort(std::string reason);
  bool is_aborted() const { return aborted_.load(); }
  Status failure() const {
    if (!is_aborted()) return ok_status();
    const std::lock_guard lock(mutex_);
    return unavailable("the group of ranks was ended: " + *reason_);
  }

 private:
  mutable std::mutex mutex_;  // never held by who holds an end's
  std::optional<std::string> reason_;
  std::atomic<bool> aborted_{false};
  std::vector<NcclEnd*> ends_;
};

class NcclEnd final : public Communicator {
 public:
  NcclEnd(const NcclApi& api, std::shared_ptr<NcclGroup> group, Ranks ranks)
      : api_(api), group_(std::move(group)), ranks_(ranks) {
    group_->add(*this);
  }
  ~NcclEnd() override {
    group_->remove(*this);
    if (comm_ && !group_->is_aborted()) {
      api_.destroy(std::exchange(comm_, nullptr));
      group_->abort("rank " + std::to_string(rank()) + " is gone");
    }
    if (comm_) api_.abort(std::exchange(comm_, nullptr));
    if (aborting_.joinable()) aborting_.join();
  }
  int rank() const override { return ranks_.rank; }
  int size() const override { return ranks_.size; }

  // The calling thread's device is this rank's.
  Status connect(const NcclApi::UniqueId& id) {
    return call("ncclCommInitRank", [&] { return api_.init_rank(&comm_, size(), id, rank()); });
  }

  Status all_reduce(void* data, std::size_t count, DType dtype, Stream stream) override {
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
      return internal_error("all_reduce of " + std::string(dtype_name(dtype)));
    const int type = dtype == DType::f32    ? NcclApi::kFloat32
                     : dtype == DType::bf16 ? NcclApi::kBFloat16
                                            : NcclApi::kFloat16;
    return call("ncclAllReduce",
                [&] { return api_.all_reduce(data, data, count, type, NcclApi::kSum, comm_, stream.native); });
  }
  Status all_gather(const void* from, void* to, std::size_t bytes, Stream stream) override {
    return call("ncclAllGather",
                [&] { return api_.all_gather(from, to, bytes, NcclApi::kInt8, comm_, stream.native); });
  }
  // Sends and receives in one group are one operation of NCCL's, so that none waits for another.
  Status all_to_all(const void* from, void* to, std::size_t bytes, Stream stream) override {
    return call("ncclSend and ncclRecv", [&] {
      int result = api_.group_start();
      for (int rank = 0; rank < size() && result == NcclApi::kSuccess; ++rank) {
        const std::size_t at = static_cast<std::size_t>(rank) * bytes;
        result = api_.send(static_cast<const std::byte*>(from) + at, bytes, NcclApi::kInt8, rank, comm_, stream.native);
        if (result == NcclApi::kSuccess)
          result = api_.receive(static_cast<std::byte*>(to) + at, bytes, NcclApi::kInt8, rank, comm_, stream.native);
      }
      const int ended = api_.group_end();  // also after an error: the thread would stay in the group
      return result == NcclApi::kSuccess ? ended : result;
    });
  }
  Status broadcast(void* data, std::size_t bytes, int root, Stream stream) override {
    if (root < 0 || root >= size()) return internal_error("broadcast from rank " + std::to_string(root));
    return call("ncclBroadcast",
                [&] { return api_.broadcast(data, data, bytes, NcclApi::kInt8, root, comm_, stream.native); });
  }
  void abort(std::string reason) override { group_->abort(std::move(reason)); }
  Status failure() const override { return group_->failure(); }

  // Once the group has ended: frees what waits in the stream, unless the owner is in a call, who then does it. NCCL's
  // abort does that first, and ends when the graphs that its calls stand in are gone: so it has a thread, which
  // the destructor waits for.
  void end() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || !comm_) return;
    aborting_ = std::thread([this, comm = std::exchange(comm_, nullptr)] { api_.abort(comm); });
  }

 private:
  // Calls only put work into the stream (once connected): none waits for another rank.
  template <class Function>
  Status call(const char* name, const Function& function) {
    int result = NcclApi::kSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (group_->is_aborted()) return group_->failure();
      result = function();
    }
    if (result != NcclApi::kSuccess && !group_->is_aborted()) {
      const Error error = internal_error(std::string(name) + " failed on rank " + std::to_string(rank()) + ": " +
                                         api_.error_text(result));
      group_->abort(error.message);
      return error;
    }
    if (!group_->is_aborted()) return ok_status();
    end();  // whoever aborted may have found this call under way
    return group_->failure();
  }

  const NcclApi& api_;
  std::shared_ptr<NcclGroup> group_;
  Ranks ranks_;
  std::mutex mutex_;  // of comm_
  NcclApi::Comm comm_ = nullptr;
  std::thread aborting_;
};

void NcclGroup::abort(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = std::move(reason);
  aborted_.store(true);
  for (NcclEnd* const each : ends_) each->end();
}

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_group(std::span<Device* const> devices) {
  MSTAR_TRY_ASSIGN(const NcclApi* const api, NcclApi::load());
  return make_nccl_group(*api, devices);
}

Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_group(const NcclApi& api,
                                                                   std::span<Device* const> devices) {
  NcclApi::UniqueId id{};
  if (const int made = api.get_unique_id(&id); made != NcclApi::kSuccess)
    return internal_error(std::string("ncclGetUniqueId failed: ") + api.error_text(made));
  const auto group = std::make_shared<NcclGroup>();
  const int size = static_cast<int>(devices.size());
  std::vector<std::unique_ptr<Communicator>> out;
  std::vector<Status> connected(devices.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    auto end = std::make_unique<NcclEnd>(api, group, Ranks{rank, size});
    threads.emplace_back([&connected, &id, device = devices[static_cast<std::size_t>(rank)], rank, own = end.get()] {
      device->default_stream();  // makes it this thread's
      connected[static_cast<std::size_t>(rank)] = own->connect(id);
    });
    out.push_back(std::move(end));
  }
  for (std::thread& each : threads) each.join();
  for (const Status& each : connected) MSTAR_TRY(Status(each));
  return out;
}

Result<std::string> make_nccl_key() {
  MSTAR_TRY_ASSIGN(const NcclApi* const api, NcclApi::load());
  return make_nccl_key(*api);
}

Result<std::string> make_nccl_key(const NcclApi& api) {
  NcclApi::UniqueId id{};
  if (const int made = api.get_unique_id(&id); made != NcclApi::kSuccess)
    return internal_error(std::string("ncclGetUniqueId failed: ") + api.error_text(made));
  return std::string(id.bytes, sizeof id.bytes);
}

Result<std::unique_ptr<Communicator>> join_nccl_group(std::string_view key, Ranks ranks, Device& device) {
  MSTAR_TRY_ASSIGN(const NcclApi* const api, NcclApi::load());
  return join_nccl_group(*api, key, ranks, device);
}

Result<std::unique_ptr<Communicator>> join_nccl_group(const NcclApi& api, std::string_view key, Ranks ranks,
                                                      Device& device) {
  NcclApi::UniqueId id{};
  if (key.size() != sizeof id.bytes || ranks.rank < 0 || ranks.rank >= ranks.size)
    return internal_error("a key of " + std::to_string(key.size()) + " bytes for rank " + std::to_string(ranks.rank) +
                          " of " + std::to_string(ranks.size) + " GPUs");
  std::memcpy(id.bytes, key.data(), key.size());
  auto end = std::make_unique<NcclEnd>(api, std::make_shared<NcclGroup>(), ranks);
  device.default_stream();  // makes it this thread's
  MSTAR_TRY(end->connect(id));
  return std::unique_ptr<Communicator>(std::move(end));
}

}  // namespace mstar
