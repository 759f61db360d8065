// Random-access bytes from outside (an upload in memory, a file), and the cursor that decoding libraries read them
// through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/result.h"

namespace mstar {

// Encoded bytes of known size. Immutable; any number of threads may read one source at once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size_bytes() const = 0;
  // Copies bytes from `offset` on into `out`; returns how many. Fewer than asked only where the source ends (0 at or
  // past the end). Error: unavailable, when the operating system cannot read the file.
  virtual Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

// Bytes already in memory, shared and never copied.
std::shared_ptr<const ByteSource> memory_bytes(std::shared_ptr<const std::string> bytes);
// As above for any owner that keeps `bytes` alive and unchanged (a HostValue, a request body).
std::shared_ptr<const ByteSource> memory_bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
// An open regular file, read by pread: resident memory does not grow with the file, and a file cut short while it is
// being read ends early instead of raising SIGBUS. Error: invalid_request if there is no such readable regular file.
Result<std::shared_ptr<const ByteSource>> file_bytes(const std::string& path);
// The bytes [offset, offset + size_bytes) of `whole`, clipped to it.
std::shared_ptr<const ByteSource> sub_bytes(std::shared_ptr<const ByteSource> whole, std::uint64_t offset,
                                            std::uint64_t size_bytes);

// A position over a ByteSource with the read-ahead that turns many small reads into few. Every request is clipped to
// the source, so a decoder may ask for anything. One thread.
class ByteCursor {
 public:
  explicit ByteCursor(std::shared_ptr<const ByteSource> source);

  std::int64_t size() const { return static_cast<std::int64_t>(source_->size_bytes()); }
  std::int64_t tell() const { return position_; }
  // Bytes copied, 0 at the end; a failed read of the file counts as the end and is kept in status().
  std::int64_t read(void* out, std::int64_t num_bytes);
  // whence: SEEK_SET, SEEK_CUR or SEEK_END. Returns the new position, or -1 (unmoved) if it would leave [0, size].
  std::int64_t seek(std::int64_t offset, int whence);
  const Status& status() const { return status_; }

 private:
  static constexpr std::size_t kReadAheadBytes = 32 << 10;

  std::size_t fetch(std::uint64_t offset, std::span<std::byte> out);

  std::shared_ptr<const ByteSource> source_;
  std::int64_t position_ = 0;
  std::vector<std::byte> ahead_;
  std::uint64_t ahead_offset_ = 0;
  Status status_;
};

}  // namespace mstar
