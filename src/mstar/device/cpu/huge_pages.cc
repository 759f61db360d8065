#include "mstar/device/cpu/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "mstar/base/check.h"

namespace mstar {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{64} << 20;
constexpr std::size_t kPieceAlignment = 256;

constexpr std::size_t rounded_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

// On a huge page's edge; null when there is none.
std::byte* map_chunk(std::size_t bytes) {
  const std::size_t mapped = bytes + kHugePage;
  void* const at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(at);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kHugePage - before);
  (void)::madvise(begin + before, bytes, MADV_HUGEPAGE);  // without it, pages of 4 KiB
  return begin + before;
}

}  // namespace

HugePages::~HugePages() {
  for (const auto& [begin, chunk] : chunks_) ::munmap(begin, chunk.bytes);
}

void* HugePages::take(std::size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t size = rounded_up(std::max<std::size_t>(bytes, 1), kPieceAlignment);
  std::lock_guard lock(mutex_);
  auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                            [&](const auto& each) { return each.second.bytes - each.second.used >= size; });
  if (chunk == chunks_.end()) {
    const std::size_t chunk_bytes = std::max(kChunk, rounded_up(size, kHugePage));
    std::byte* const begin = map_chunk(chunk_bytes);
    if (!begin) return nullptr;
    chunk = chunks_.emplace(begin, Chunk{.bytes = chunk_bytes}).first;
  }
  std::byte* const out = chunk->first + chunk->second.used;
  chunk->second.used += size;
  ++chunk->second.num_pieces;
  return out;
}

void HugePages::give_back(void* piece) {
  if (!piece) return;
  auto* const at = static_cast<std::byte*>(piece);
  std::lock_guard lock(mutex_);
  auto chunk = chunks_.upper_bound(at);
  MSTAR_CHECK(chunk != chunks_.begin(), "memory that was not taken here");
  chunk = std::prev(chunk);
  MSTAR_CHECK(at < chunk->first + chunk->second.used, "memory that was not taken here");
  if (--chunk->second.num_pieces > 0) return;
  ::munmap(chunk->first, chunk->second.bytes);
  chunks_.erase(chunk);
}

std::size_t HugePages::num_chunks() const {
  std::lock_guard lock(mutex_);
  return chunks_.size();
}

}  // namespace mstar
