// Memory for what is kept and read over and over: weights.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace mstar {

// Pieces side by side in chunks of memory whose pages are of 2 MiB where the system gives such ("madvise" or "always"
// in /sys/kernel/mm/transparent_hugepage/enabled): a stream of reads then crosses few pages, and each is found by a
// shorter walk, which matters most inside of a virtual machine. Memory that is not written takes nothing. Thread: any.
class HugePages {
 public:
  HugePages() = default;
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages();
  // 256-aligned; null when there is no memory. Cost: a system call for each 64 MiB.
  void* take(std::size_t bytes);
  // A chunk goes back to the system with the last of its pieces.
  void give_back(void* piece);
  std::size_t num_chunks() const;

 private:
  struct Chunk {
    std::size_t bytes = 0;
    std::size_t used = 0;
    int num_pieces = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::byte*, Chunk> chunks_;  // by begin
};

}  // namespace mstar
