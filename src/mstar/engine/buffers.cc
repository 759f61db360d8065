#include "mstar/engine/buffers.h"

#include <algorithm>
#include <bit>

#include "mstar/base/log.h"

namespace mstar::engine {

BufferPool::~BufferPool() {
  for (auto& [bytes, pointers] : free_)
    for (void* pointer : pointers) device_.release(pointer);
  for (const Region& region : regions_) device_.release(region.base);
}

BufferPool::Block::~Block() {
  if (pool) pool->give_back(*this);
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

bool BufferPool::take_reserved(Block& block, bool is_small) {
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    if (regions_[r].is_small != is_small) continue;
    const auto offset = regions_[r].free.take(block.bytes);
    if (!offset) continue;
    block.pointer = regions_[r].base + *offset;
    block.region = static_cast<int>(r);
    return true;
  }
  return false;
}

void BufferPool::take_free(Block& block) {
  const std::size_t size = class_of(block.bytes), most = std::max(size * kMaxExcess, kSmallBlock);
  for (auto it = free_.lower_bound(size); it != free_.end() && it->first <= most; ++it) {
    if (it->second.empty()) continue;
    block.pointer = it->second.back();
    block.bytes = it->first;
    it->second.pop_back();
    return;
  }
}

Result<std::shared_ptr<BufferPool::Block>> BufferPool::take(std::size_t bytes) {
  auto block = std::make_shared<Block>();
  block->bytes = std::max<std::size_t>(bytes, 1);
  const bool is_small = bytes <= kSmallBlock;
  bool has_reserved = false;
  {
    std::lock_guard lock(mutex_);
    has_reserved = !regions_.empty();
    if (!take_reserved(*block, is_small) && !(is_small && take_reserved(*block, false))) take_free(*block);
  }
  if (!block->pointer) {
    block->bytes = class_of(block->bytes);
    MSTAR_TRY_ASSIGN(block->pointer, device_.allocate(block->bytes));
    std::lock_guard lock(mutex_);
    ++num_allocations_;
    held_bytes_ += block->bytes;
    if (has_reserved)
      log_info("a step allocated {} bytes of device memory: more outputs wait than were expected", block->bytes);
  }
  block->pool = shared_from_this();
  return block;
}

Status BufferPool::reserve(std::span<const std::size_t> sizes) {
  std::size_t small = 0, large = 0;
  for (const std::size_t bytes : sizes) (bytes <= kSmallBlock ? small : large) += FreeList::rounded(bytes);
  MSTAR_TRY(reserve_region(small, true));
  return reserve_region(large, false);
}

Status BufferPool::reserve_region(std::size_t num_bytes, bool is_small) {
  if (num_bytes == 0) return ok_status();
  MSTAR_TRY_ASSIGN(void* const base, device_.allocate(num_bytes));
  std::lock_guard lock(mutex_);
  regions_.push_back({static_cast<std::byte*>(base), is_small, FreeList(num_bytes)});
  ++num_allocations_;
  held_bytes_ += num_bytes;
  return ok_status();
}

void BufferPool::give_back(const Block& block) {
  std::lock_guard lock(mutex_);
  if (block.region < 0) {
    free_[block.bytes].push_back(block.pointer);
  } else {
    Region& region = regions_[static_cast<std::size_t>(block.region)];
    region.free.give_back(static_cast<std::size_t>(static_cast<std::byte*>(block.pointer) - region.base), block.bytes);
  }
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
