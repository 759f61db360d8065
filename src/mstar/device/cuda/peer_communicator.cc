#include "mstar/device/cuda/peer_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "mstar/base/log.h"
#include "mstar/device/cuda/cuda_check.h"
#include "mstar/device/cuda/nccl_communicator.h"
#include "mstar/device/cuda/peer_kernels.h"

namespace mstar {
namespace {

using cuda::PeerView;

// NCCL takes a device for one rank only.
bool are_apart(std::span<Device* const> devices) {
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (devices[i]->id() == devices[j]->id()) return false;
  return true;
}

// The group's memory, and why it has ended.
class PeerGroup {
 public:
  explicit PeerGroup(std::span<Device* const> devices) : devices_(devices.begin(), devices.end()) {}
  ~PeerGroup() {
    for (std::size_t r = 0; r < devices_.size(); ++r)
      for (void* const each : memory_[r])
        if (each) devices_[r]->release(each);
    if (aborted_) devices_.front()->release_host(const_cast<int*>(aborted_));
  }
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  Status allocate() {
    MSTAR_TRY(reach_each_other());
    MSTAR_TRY_ASSIGN(void* const flag, devices_.front()->allocate_host(sizeof(int)));
    aborted_ = static_cast<int*>(flag);
    *aborted_ = 0;
    for (std::size_t r = 0; r < devices_.size(); ++r) {
      Device& device = *devices_[r];
      const Stream stream = device.default_stream();
      for (const std::size_t bytes : {inbox_bytes(), 2 * sizeof(std::uint32_t)}) {
        MSTAR_TRY_ASSIGN(void* const memory, device.allocate(bytes));
        memory_[r][bytes == inbox_bytes() ? 0 : 1] = memory;
        device.fill_zero(memory, bytes, stream);
      }
      device.synchronize(stream);  // before anybody writes into it
    }
    return ok_status();
  }
  PeerView view(int rank) const {
    PeerView out;
    for (std::size_t r = 0; r < devices_.size(); ++r) out.inboxes[r] = static_cast<unsigned char*>(memory_[r][0]);
    out.lines = kPeerMessageBytes / cuda::kLineBytes;
    out.calls = static_cast<std::uint32_t*>(memory_[static_cast<std::size_t>(rank)][1]);
    out.aborted = aborted_;
    out.rank = rank;
    out.size = static_cast<int>(devices_.size());
    out.shares_device = !are_apart(devices_);
    return out;
  }

  void add_behind(Communicator* end) {
    const std::lock_guard lock(mutex_);
    behind_.push_back(end);
  }
  void remove_behind(Communicator* end) {
    const std::lock_guard lock(mutex_);
    behind_.erase(std::remove(behind_.begin(), behind_.end(), end), behind_.end());
  }
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
    *aborted_ = 1;
    is_aborted_.store(true);
    for (Communicator* const each : behind_) each->abort(reason);
  }
  bool is_aborted() const { return is_aborted_.load(); }
  Status failure() const {
    if (!is_aborted()) return ok_status();
    const std::lock_guard lock(mutex_);
    return unavailable("the group of ranks was ended: " + *reason_);
  }

 private:
  std::size_t inbox_bytes() const { return 2 * devices_.size() * kPeerMessageBytes / cuda::kLineBytes * 16; }

  Status reach_each_other() const {
    for (Device* const from : devices_)
      for (Device* const to : devices_) {
        if (from->id() == to->id()) continue;
        from->default_stream();  // makes it this thread's
        int can = 0;
        check_cuda(cudaDeviceCanAccessPeer(&can, from->id().index, to->id().index), "cudaDeviceCanAccessPeer");
        const cudaError_t enabled =
            can ? cudaDeviceEnablePeerAccess(to->id().index, 0) : cudaErrorPeerAccessUnsupported;
        (void)cudaGetLastError();  // it may be enabled already
        if (enabled != cudaSuccess && enabled != cudaErrorPeerAccessAlreadyEnabled)
          return unavailable("cuda:" + std::to_string(from->id().index) + " cannot reach the memory of cuda:" +
                             std::to_string(to->id().index) + ": " + cudaGetErrorString(enabled));
      }
    return ok_status();
  }

  std::vector<Device*> devices_;
  void* memory_[cuda::kMostPeers][2] = {};
  volatile int* aborted_ = nullptr;  // what kernels look at
  mutable std::mutex mutex_;         // never held by who holds an end's behind
  std::optional<std::string> reason_;
  std::atomic<bool> is_aborted_{false};
  std::vector<Communicator*> behind_;
};

class PeerEnd final : public Communicator {
 public:
  PeerEnd(std::shared_ptr<PeerGroup> group, Ranks ranks, std::unique_ptr<Communicator> behind)
      : group_(std::move(group)), ranks_(ranks), view_(group_->view(ranks.rank)), behind_(std::move(behind)) {
    if (behind_) group_->add_behind(behind_.get());
  }
  ~PeerEnd() override {
    if (behind_) group_->remove_behind(behind_.get());
    if (!group_->is_aborted()) group_->abort("rank " + std::to_string(rank()) + " is gone");
  }
  int rank() const override { return ranks_.rank; }
  int size() const override { return ranks_.size; }

  Status all_reduce(void* data, std::size_t count, DType dtype, Stream stream) override {
    MSTAR_TRY(failure());
    const std::size_t each = dtype_bytes(dtype), most = kPeerMessageBytes / each;
    if (behind_ && count > most) return behind_->all_reduce(data, count, dtype, stream);
    for (std::size_t begin = 0; begin < count; begin += most)
      MSTAR_TRY(ended(cuda::peer_all_reduce(view_, static_cast<std::byte*>(data) + begin * each,
                                            std::min(most, count - begin), dtype, stream)));
    return ok_status();
  }
  Status all_gather(const void* from, void* to, std::size_t bytes_per_rank, Stream stream) override {
    MSTAR_TRY(failure());
    if (behind_ && bytes_per_rank > kPeerMessageBytes) return behind_->all_gather(from, to, bytes_per_rank, stream);
    return exchange({.from = from, .to = to, .to_stride = bytes_per_rank, .bytes = bytes_per_rank}, stream);
  }
  Status all_to_all(const void* from, void* to, std::size_t bytes_per_rank, Stream stream) override {
    MSTAR_TRY(failure());
    if (behind_ && bytes_per_rank > kPeerMessageBytes) return behind_->all_to_all(from, to, bytes_per_rank, stream);
    return exchange(
        {.from = from, .from_stride = bytes_per_rank, .to = to, .to_stride = bytes_per_rank, .bytes = bytes_per_rank},
        stream);
  }
  Status broadcast(void* data, std::size_t bytes, int root, Stream stream) override {
    MSTAR_TRY(failure());
    if (root < 0 || root >= size()) return internal_error("broadcast from rank " + std::to_string(root));
    if (behind_ && bytes > kPeerMessageBytes) return behind_->broadcast(data, bytes, root, stream);
    return exchange({.from = data, .to = data, .bytes = bytes, .root = root}, stream);
  }
  void abort(std::string reason) override { group_->abort(reason); }
  Status failure() const override {
    MSTAR_TRY(group_->failure());
    return behind_ ? behind_->failure() : ok_status();
  }

 private:
  // In as many calls as it takes.
  Status exchange(cuda::PeerExchange whole, Stream stream) {
    for (std::size_t begin = 0; begin < whole.bytes; begin += kPeerMessageBytes) {
      cuda::PeerExchange part = whole;
      part.from = static_cast<const std::byte*>(whole.from) + begin;
      part.to = static_cast<std::byte*>(whole.to) + begin;
      part.bytes = std::min(kPeerMessageBytes, whole.bytes - begin);
      MSTAR_TRY(ended(cuda::peer_exchange(view_, part, stream)));
    }
    return ok_status();
  }
  // The others wait for what was not launched.
  Status ended(Status launched) {
    if (!launched) group_->abort("rank " + std::to_string(rank()) + ": " + launched.error().message);
    return launched;
  }

  std::shared_ptr<PeerGroup> group_;
  Ranks ranks_;
  PeerView view_;
  std::unique_ptr<Communicator> behind_;
};

Result<std::shared_ptr<PeerGroup>> make_memory(std::span<Device* const> devices) {
  if (devices.size() > static_cast<std::size_t>(cuda::kMostPeers))
    return unavailable("a group of " + std::to_string(devices.size()) + " ranks: at most " +
                       std::to_string(cuda::kMostPeers) + " write into each other's memory");
  auto group = std::make_shared<PeerGroup>(devices);
  MSTAR_TRY(group->allocate());
  return group;
}

std::vector<std::unique_ptr<Communicator>> make_ends(const std::shared_ptr<PeerGroup>& group, std::size_t num_ranks,
                                                     std::vector<std::unique_ptr<Communicator>> behind) {
  std::vector<std::unique_ptr<Communicator>> out;
  behind.resize(num_ranks);
  for (std::size_t rank = 0; rank < num_ranks; ++rank)
    out.push_back(std::make_unique<PeerEnd>(group, Ranks{static_cast<int>(rank), static_cast<int>(num_ranks)},
                                            std::move(behind[rank])));
  return out;
}

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> make_peer_group(std::span<Device* const> devices,
                                                                   std::vector<std::unique_ptr<Communicator>> behind) {
  MSTAR_TRY_ASSIGN(const auto group, make_memory(devices));
  return make_ends(group, devices.size(), std::move(behind));
}

Result<std::vector<std::unique_ptr<Communicator>>> make_gpu_group(std::span<Device* const> devices) {
  auto group = make_memory(devices);
  Result<std::vector<std::unique_ptr<Communicator>>> nccl = unavailable("ranks share a GPU");
  if (are_apart(devices)) nccl = make_nccl_group(devices);
  if (!group && !nccl) return unavailable(group.error().message + "; " + nccl.error().message);
  if (!group) {
    log_warn("ranks speak through NCCL alone: {}", group.error().message);
    return nccl;
  }
  if (!nccl) log_warn("ranks speak through each other's memory alone: {}", nccl.error().message);
  return make_ends(*group, devices.size(), nccl ? std::move(*nccl) : std::vector<std::unique_ptr<Communicator>>());
}

}  // namespace mstar
