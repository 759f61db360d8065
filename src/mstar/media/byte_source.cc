#include "mstar/media/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace mstar {
namespace {

std::string errno_text(int error) { return std::generic_category().message(error); }

class MemoryBytes final : public ByteSource {
 public:
  MemoryBytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  std::uint64_t size_bytes() const override { return bytes_.size(); }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset >= bytes_.size()) return std::size_t{0};
    const std::size_t count = std::min<std::size_t>(out.size(), bytes_.size() - static_cast<std::size_t>(offset));
    if (count > 0) std::memcpy(out.data(), bytes_.data() + offset, count);
    return count;
  }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

class FileBytes final : public ByteSource {
 public:
  FileBytes(int descriptor, std::uint64_t size_bytes, std::string path)
      : descriptor_(descriptor), size_bytes_(size_bytes), path_(std::move(path)) {}
  ~FileBytes() override { ::close(descriptor_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::uint64_t size_bytes() const override { return size_bytes_; }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset >= size_bytes_) return std::size_t{0};
    const std::size_t wanted = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), size_bytes_ - offset));
    std::size_t done = 0;
    while (done < wanted) {
      const ssize_t got = ::pread(descriptor_, out.data() + done, wanted - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return unavailable("cannot read '" + path_ + "': " + errno_text(errno));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  int descriptor_;
  std::uint64_t size_bytes_;
  std::string path_;
};

class SubBytes final : public ByteSource {
 public:
  SubBytes(std::shared_ptr<const ByteSource> whole, std::uint64_t offset, std::uint64_t size_bytes)
      : whole_(std::move(whole)), offset_(offset), size_bytes_(size_bytes) {}

  std::uint64_t size_bytes() const override { return size_bytes_; }
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset >= size_bytes_) return std::size_t{0};
    const std::uint64_t left = size_bytes_ - offset;
    return whole_->read_at(offset_ + offset,
                           out.first(static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), left))));
  }

 private:
  std::shared_ptr<const ByteSource> whole_;
  std::uint64_t offset_;
  std::uint64_t size_bytes_;
};

}  // namespace

std::shared_ptr<const ByteSource> memory_bytes(std::shared_ptr<const std::string> bytes) {
  if (!bytes) return std::make_shared<MemoryBytes>(std::span<const std::byte>(), nullptr);
  const std::span<const std::byte> view = std::as_bytes(std::span<const char>(*bytes));
  return std::make_shared<MemoryBytes>(view, std::move(bytes));
}

std::shared_ptr<const ByteSource> memory_bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  return std::make_shared<MemoryBytes>(bytes, std::move(owner));
}

Result<std::shared_ptr<const ByteSource>> file_bytes(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not hang before it is refused below.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return invalid_request("cannot open '" + path + "': " + errno_text(errno));
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return invalid_request("cannot read '" + path + "': it is not a regular file");
  }
  return std::shared_ptr<const ByteSource>(
      std::make_shared<FileBytes>(descriptor, static_cast<std::uint64_t>(status.st_size), path));
}

std::shared_ptr<const ByteSource> sub_bytes(std::shared_ptr<const ByteSource> whole, std::uint64_t offset,
                                            std::uint64_t size_bytes) {
  const std::uint64_t total = whole->size_bytes();
  const std::uint64_t start = std::min(offset, total);
  return std::make_shared<SubBytes>(std::move(whole), start, std::min(size_bytes, total - start));
}

ByteCursor::ByteCursor(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}

std::int64_t ByteCursor::read(void* out, std::int64_t num_bytes) {
  if (num_bytes <= 0 || position_ >= size()) return 0;
  auto* bytes = static_cast<std::byte*>(out);
  std::size_t wanted = static_cast<std::size_t>(std::min(num_bytes, size() - position_));
  std::size_t done = 0;
  while (done < wanted) {
    const std::uint64_t at = static_cast<std::uint64_t>(position_);
    if (at >= ahead_offset_ && at - ahead_offset_ < ahead_.size()) {
      const std::size_t skip = static_cast<std::size_t>(at - ahead_offset_);
      const std::size_t count = std::min(wanted - done, ahead_.size() - skip);
      std::memcpy(bytes + done, ahead_.data() + skip, count);
      done += count;
      position_ += static_cast<std::int64_t>(count);
      continue;
    }
    if (wanted - done >= kReadAheadBytes) {
      const std::size_t got = fetch(at, {bytes + done, wanted - done});
      done += got;
      position_ += static_cast<std::int64_t>(got);
      break;
    }
    ahead_.resize(kReadAheadBytes);
    ahead_offset_ = at;
    ahead_.resize(fetch(at, ahead_));
    if (ahead_.empty()) break;
  }
  return static_cast<std::int64_t>(done);
}

std::int64_t ByteCursor::seek(std::int64_t offset, int whence) {
  const std::int64_t base = whence == SEEK_CUR ? position_ : whence == SEEK_END ? size() : 0;
  std::int64_t target = 0;
  if (__builtin_add_overflow(base, offset, &target) || target < 0 || target > size()) return -1;
  position_ = target;
  return target;
}

std::size_t ByteCursor::fetch(std::uint64_t offset, std::span<std::byte> out) {
  auto got = source_->read_at(offset, out);
  if (got) return *got;
  if (status_.ok()) status_ = std::move(got.error());
  return 0;
}

}  // namespace mstar
