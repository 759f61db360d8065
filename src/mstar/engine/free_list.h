// Free parts of one piece of memory, by offset: best fit, neighbours joined again.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace mstar::engine {

// Offsets alone; touches no memory. Every length is rounded up to kUnit. O(log of the number of holes).
// Thread: one at a time.
class FreeList {
 public:
  static constexpr std::size_t kUnit = 256;  // what device memory is aligned to

  // All free. Only whole units of `num_bytes` are given out.
  explicit FreeList(std::size_t num_bytes);

  static std::size_t rounded(std::size_t num_bytes) { return (num_bytes + kUnit - 1) / kUnit * kUnit; }
  // The start of `num_bytes` in the smallest hole that has room, or nothing.
  std::optional<std::size_t> take(std::size_t num_bytes);
  // What take gave for as many bytes.
  void give_back(std::size_t offset, std::size_t num_bytes);
  std::size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void add(std::size_t offset, std::size_t num_bytes);
  void remove(std::map<std::size_t, std::size_t>::iterator hole);

  std::map<std::size_t, std::size_t> holes_;               // length by offset
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // the same: length, offset
};

}  // namespace mstar::engine
