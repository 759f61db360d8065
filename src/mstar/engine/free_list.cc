#include "mstar/engine/free_list.h"

#include <iterator>

namespace mstar::engine {

FreeList::FreeList(std::size_t num_bytes) {
  if (const std::size_t whole = num_bytes / kUnit * kUnit) add(0, whole);
}

std::optional<std::size_t> FreeList::take(std::size_t num_bytes) {
  const std::size_t size = rounded(num_bytes);
  const auto fit = by_size_.lower_bound({size, 0});
  if (size == 0 || fit == by_size_.end()) return std::nullopt;
  const auto [held, offset] = *fit;
  remove(holes_.find(offset));
  if (held > size) add(offset + size, held - size);
  return offset;
}

void FreeList::give_back(std::size_t offset, std::size_t num_bytes) {
  std::size_t begin = offset, end = offset + rounded(num_bytes);
  auto next = holes_.lower_bound(offset);
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      remove(before);
    }
  }
  if (next != holes_.end() && next->first == end) {
    end += next->second;
    remove(next);
  }
  add(begin, end - begin);
}

void FreeList::add(std::size_t offset, std::size_t num_bytes) {
  holes_.emplace(offset, num_bytes);
  by_size_.emplace(num_bytes, offset);
}

void FreeList::remove(std::map<std::size_t, std::size_t>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

}  // namespace mstar::engine
