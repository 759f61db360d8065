#include "mstar/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

namespace mstar::weights {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  // Non-blocking, so that a pipe is refused below and not waited for.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return bad_model("cannot open '" + path.string() + "': " + reason(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return bad_model("cannot read '" + path.string() + "': " + reason(errno));
  if (!S_ISREG(status.st_mode)) return bad_model("'" + path.string() + "' is not a regular file");
  if (static_cast<std::uint64_t>(status.st_size) > std::numeric_limits<std::size_t>::max() / 2)
    return exhausted("'" + path.string() + "' is too large to map");
  const auto size = static_cast<std::size_t>(status.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapped == MAP_FAILED) return exhausted("cannot map '" + path.string() + "': " + reason(errno));
    data = static_cast<const std::byte*>(mapped);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, data, size));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release_pages() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void MappedFile::release_pages(std::span<const std::byte> part) const {
  static const auto kPageBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  // The mapping begins on a page. A page that the part shares with its neighbours stays.
  const auto from = static_cast<std::size_t>(part.data() - data_);
  const std::size_t begin = (from + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t end = (from + part.size()) / kPageBytes * kPageBytes;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace mstar::weights
