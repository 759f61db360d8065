// A file mapped for reading: its bytes as a span, paged in when touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "mstar/base/result.h"

namespace mstar::weights {

// Shared by whoever still reads its bytes; unmapped with the last owner. Immutable, so any thread may read. A file that
// another program cuts short while it is mapped ends this one (SIGBUS): checkpoints are replaced by rename.
class MappedFile {
 public:
  // Errors: bad_model with the path and the system's reason (missing, no permission, not a regular file); exhausted
  // when the address space is full. An empty file maps to no bytes.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Lets the system drop the pages that were read; they come back when touched. Called after weights were copied out.
  void release_pages() const;
  // The same for the whole pages inside of `part`, which is of bytes().
  void release_pages(std::span<const std::byte> part) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, std::size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::filesystem::path path_;
  const std::byte* data_;
  std::size_t size_;
};

}  // namespace mstar::weights
