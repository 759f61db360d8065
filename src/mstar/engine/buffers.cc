#include "mstar/engine/buffers.h"

#include <bit>

namespace mstar::engine {

BufferPool::~BufferPool() {
  for (auto& [bytes, pointers] : free_)
    for (void* pointer : pointers) device_.release(pointer);
}

BufferPool::Block::~Block() {
  if (pool) pool->give_back(pointer, bytes);
}

namespace {

// Eight classes per power of two waste at most an eighth and keep the number of classes small.
std::size_t class_of(std::size_t bytes) {
  const std::size_t unit = std::max<std::size_t>(256, std::bit_floor(bytes | 1) / 8);
  return std::max<std::size_t>(1, (bytes + unit - 1) / unit) * unit;
}

// A free block that is so much larger still serves: small steps reuse what the largest one left.
constexpr std::size_t kMaxExcess = 16;

}  // namespace

Result<std::shared_ptr<BufferPool::Block>> BufferPool::take(std::size_t bytes) {
  std::size_t size = class_of(bytes);
  auto block = std::make_shared<Block>();
  {
    std::lock_guard lock(mutex_);
    const std::size_t most = std::max(size * kMaxExcess, kSmallBlock);
    for (auto it = free_.lower_bound(size); it != free_.end() && it->first <= most; ++it) {
      if (it->second.empty()) continue;
      block->pointer = it->second.back();
      it->second.pop_back();
      size = it->first;
      break;
    }
  }
  if (!block->pointer) {
    MSTAR_TRY_ASSIGN(block->pointer, device_.allocate(size));
    std::lock_guard lock(mutex_);
    ++num_allocations_;
    held_bytes_ += size;
  }
  block->bytes = size;
  block->pool = shared_from_this();
  return block;
}

Status BufferPool::reserve(std::span<const std::size_t> sizes) {
  std::vector<std::shared_ptr<Block>> taken;
  for (const std::size_t bytes : sizes) {
    MSTAR_TRY_ASSIGN(auto block, take(bytes));
    taken.push_back(std::move(block));
  }
  return ok_status();
}

void BufferPool::give_back(void* pointer, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  free_[bytes].push_back(pointer);
}

std::int64_t BufferPool::num_allocations() const {
  std::lock_guard lock(mutex_);
  return num_allocations_;
}
std::size_t BufferPool::held_bytes() const {
  std::lock_guard lock(mutex_);
  return held_bytes_;
}

Result<HostValue> RowBuffer::to_host() const {
  std::vector<std::byte> bytes(view_.bytes());
  Device& device = block_->pool->device();
  const Stream stream = device.default_stream();
  device.copy_to_host(bytes.data(), view_.pointer, bytes.size(), stream);
  device.synchronize(stream);
  return HostValue(view_.dtype, dims(), std::move(bytes));
}

}  // namespace mstar::engine
