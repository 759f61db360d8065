#include "mstar/resource/resource.h"

#include <algorithm>
#include <utility>

#include "mstar/base/digest.h"
#include "mstar/base/shares.h"
#include "mstar/resource/cross_kv.h"
#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::resource {
namespace {

template <class T>
Result<std::unique_ptr<Resource>> upcast(Result<std::unique_ptr<T>> made) {
  if (!made) return std::move(made.error());
  return std::unique_ptr<Resource>(std::move(*made));
}

struct Maker {
  const PoolLimits& limits;
  Device& device;
  Result<std::unique_ptr<Resource>> operator()(const decl::PagedKv& s) const {
    return upcast(PagedKvPool::create(s, limits, device));
  }
  Result<std::unique_ptr<Resource>> operator()(const decl::CrossKv& s) const {
    return upcast(CrossKvPool::create(s, limits, device));
  }
  Result<std::unique_ptr<Resource>> operator()(const decl::Sampler& s) const {
    return upcast(SamplerPool::create(s, limits, device));
  }
  Result<std::unique_ptr<Resource>> operator()(const decl::Latents& s) const {
    auto slots = StateSlots::create(s.name, s.tensors, 1, limits, device);
    if (slots) (*slots)->keep_what_others_wrote();
    return upcast(std::move(slots));
  }
  Result<std::unique_ptr<Resource>> operator()(const decl::RecurrentState& s) const {
    return upcast(StateSlots::create(s.name, s.tensors, static_cast<int>(s.labels.size()), limits, device,
                                     s.double_buffered ? StateUpdate::double_buffered : StateUpdate::in_place,
                                     s.snapshots));
  }
  template <class Other>
  Result<std::unique_ptr<Resource>> operator()(const Other& s) const {
    return bad_model("resource '" + s.name + "' is of a kind that this build does not run yet");
  }
};

struct Sizer {
  const PoolLimits& limits;
  std::size_t operator()(const decl::PagedKv& s) const { return PagedKvPool::planned_bytes(s, limits); }
  std::size_t operator()(const decl::CrossKv& s) const { return CrossKvPool::planned_bytes(s, limits); }
  std::size_t operator()(const decl::Latents& s) const { return StateSlots::planned_bytes(s.tensors, 1, limits); }
  std::size_t operator()(const decl::RecurrentState& s) const {
    return StateSlots::planned_bytes(s.tensors, static_cast<int>(s.labels.size()), limits,
                                     s.double_buffered ? StateUpdate::double_buffered : StateUpdate::in_place,
                                     s.snapshots);
  }
  template <class Other>
  std::size_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

Status Resource::fork(RequestId, int, int, Stream) {
  return internal_error("resource '" + usage().name + "' has no labels to fork");
}

Result<Values> Resource::take_out(RequestId) {
  return internal_error("what requests keep in '" + usage().name + "' cannot move");
}

Status Resource::put_in(RequestId, const Values&) {
  return internal_error("what requests keep in '" + usage().name + "' cannot move");
}

bool can_move(const decl::ResourceSpec& spec) {
  return std::holds_alternative<decl::PagedKv>(spec) || std::holds_alternative<decl::RecurrentState>(spec) ||
         std::holds_alternative<decl::Latents>(spec) || std::holds_alternative<decl::Sampler>(spec);
}

std::uint64_t Resource::digest() const {
  const Usage now = usage();
  Digest digest;
  for (const std::int64_t each : {now.used, now.cached, now.num_preempted, now.found_tokens, now.num_snapshots})
    digest.add(static_cast<std::uint64_t>(each));
  return digest.value();
}

std::size_t planned_bytes(const decl::ResourceSpec& spec, const PoolLimits& limits) {
  return std::visit(Sizer{limits}, spec);
}

Result<std::unique_ptr<Resource>> make_resource(const decl::ResourceSpec& spec, const PoolLimits& limits,
                                                Device& device) {
  return std::visit(Maker{limits, device}, spec);
}

Result<int> heads_per_rank(const std::string& name, int heads, int head_shards) {
  if (head_shards < 1 || heads < 1) return check_positive(name, {heads, head_shards}).error();
  if (const auto share = shared_share(heads, {.rank = 0, .size = head_shards})) return static_cast<int>(share->count());
  return bad_model("resource '" + name + "': its " + std::to_string(heads) + " heads do not divide over " +
                   std::to_string(head_shards) + " ranks");
}

Status check_positive(const std::string& name, std::span<const std::int64_t> sizes) {
  for (const std::int64_t size : sizes)
    if (size < 1)
      return bad_model("resource '" + name + "': its sizes must be at least 1, one is " + std::to_string(size));
  return ok_status();
}

Status check_positive(const std::string& name, std::initializer_list<std::int64_t> sizes) {
  return check_positive(name, std::span<const std::int64_t>(sizes.begin(), sizes.size()));
}

Status check_limits(const PoolLimits& limits, const std::string& name) {
  return check_positive(
      name, {limits.max_requests, limits.max_rows, limits.max_tokens, limits.head_shards, limits.num_plan_slots});
}

Result<PlanBuffer> PlanBuffer::create(Device& device, std::size_t count) {
  PlanBuffer out;
  out.device_ = &device;
  out.count_ = count;
  const std::size_t bytes = (count ? count : 1) * sizeof(std::int32_t);
  MSTAR_TRY_ASSIGN(void* const host, device.allocate_host(bytes));
  out.host_ = static_cast<std::int32_t*>(host);
  if (device.id().backend == Backend::cpu) {
    out.device_pointer_ = out.host_;
  } else {
    MSTAR_TRY_ASSIGN(void* const pointer, device.allocate(bytes));
    out.device_pointer_ = static_cast<std::int32_t*>(pointer);
  }
  return out;
}

Result<PlanArrays> PlanArrays::create(Device& device, std::span<const std::size_t> counts) {
  constexpr std::size_t kAlign = 64;  // 256 bytes
  PlanArrays out;
  std::size_t end = 0;
  for (const std::size_t count : counts) {
    out.starts_.push_back(end);
    out.counts_.push_back(count);
    end += (count + kAlign - 1) / kAlign * kAlign;
  }
  MSTAR_TRY_ASSIGN(out.buffer_, PlanBuffer::create(device, end));
  const auto host = out.buffer_.host();
  std::fill(host.begin(), host.end(), 0);
  return out;
}

PlanBuffer& PlanBuffer::operator=(PlanBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(host_, other.host_);
  std::swap(device_pointer_, other.device_pointer_);
  std::swap(count_, other.count_);
  return *this;
}

PlanBuffer::~PlanBuffer() {
  if (device_pointer_ && device_pointer_ != host_) device_->release(device_pointer_);
  if (host_) device_->release_host(host_);
}

void PlanBuffer::upload(std::size_t count, Stream stream) const {
  if (device_pointer_ != host_ && count)
    device_->copy_to_device(device_pointer_, host_, count * sizeof(std::int32_t), stream);
}

}  // namespace mstar::resource
