#include "mstar/engine/slot_memory.h"

#include <algorithm>
#include <utility>

#include "mstar/base/check.h"

namespace mstar::engine {

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PinnedBlock::~PinnedBlock() {
  if (data_) device_->release_host(data_);
}

Result<std::byte*> PinnedBlock::reserve(std::size_t bytes) {
  if (bytes <= size_ && data_) return data_;
  const std::size_t size = std::max<std::size_t>({bytes, 2 * size_, 4096});
  MSTAR_TRY_ASSIGN(void* const fresh, device_->allocate_host(size));
  if (data_) device_->release_host(data_);
  data_ = static_cast<std::byte*>(fresh);
  size_ = size;
  return data_;
}

Result<StaticBlock> StaticBlock::allocate(Device& device, std::size_t bytes) {
  StaticBlock out;
  MSTAR_TRY_ASSIGN(void* const fresh, device.allocate(bytes));
  out.device_ = &device;
  out.data_ = static_cast<std::byte*>(fresh);
  return out;
}

StaticBlock& StaticBlock::operator=(StaticBlock&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

StaticBlock::~StaticBlock() {
  if (data_) device_->release(data_);
}

ActivationArena::~ActivationArena() {
  if (memory_) device_.release(memory_);
}

void ActivationArena::claim(std::size_t bytes) {
  MSTAR_CHECK(!memory_ || bytes <= bytes_, "an engine claimed activation memory after the arena was sealed");
  bytes_ = std::max(bytes_, bytes);
}

Status ActivationArena::seal() {
  if (memory_) return ok_status();
  MSTAR_TRY_ASSIGN(memory_, device_.allocate(bytes_));
  return ok_status();
}

}  // namespace mstar::engine
