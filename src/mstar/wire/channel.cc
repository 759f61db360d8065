#include "mstar/wire/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "mstar/base/log.h"

namespace mstar::wire {

Result<std::array<int, 2>> make_socket_pair() {
  std::array<int, 2> ends = {};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return unavailable(std::string("no socket pair: ") + std::strerror(errno));
  return ends;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  const Descriptor old(std::exchange(fd_, other.release()));
  return *this;
}

namespace {

// Room for one descriptor beside a message.
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes = {};
};

void put_descriptor(msghdr& message, Control& control, int fd) {
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
}

Descriptor take_descriptor(msghdr& message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return Descriptor();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return Descriptor(fd);
}

}  // namespace

Channel::Channel(int socket, Callbacks callbacks) : socket_(socket), callbacks_(std::move(callbacks)) {
  reader_ = std::thread([this] { read(); });
  writer_ = std::thread([this] { write(); });
}

Channel::~Channel() {
  close();
  reader_.join();
  writer_.join();
  ::close(socket_);
}

bool Channel::send(std::string frame, Descriptor along) {
  return frame.size() <= kMaxFrameBytes && outbox_.push({std::move(frame), std::move(along)});
}

void Channel::close() {
  outbox_.close();
  ::shutdown(socket_, SHUT_RDWR);
}

void Channel::flush_and_close(std::chrono::milliseconds timeout) {
  outbox_.close();
  {
    std::unique_lock lock(mutex_);
    written_.wait_for(lock, timeout, [&] { return writer_done_; });
  }
  close();
}

bool Channel::read_exactly(std::span<std::byte> to, Descriptor* along) const {
  while (!to.empty()) {
    iovec part{to.data(), to.size()};
    Control control;
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (along) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = control.bytes.size();
    }
    const ssize_t got = ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    if (along && message.msg_controllen > 0) *along = take_descriptor(message);
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

bool Channel::write_exactly(std::span<const std::byte> from, int along) const {
  while (!from.empty()) {
    iovec part{const_cast<std::byte*>(from.data()), from.size()};
    Control control;
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (along >= 0) put_descriptor(message, control, along);
    const ssize_t put = ::sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    along = -1;  // it went with the first bytes
    from = from.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

void Channel::read() {
  try {
    std::uint64_t size = 0;
    std::vector<std::byte> frame;
    Descriptor along;
    while (read_exactly(std::as_writable_bytes(std::span(&size, 1)), &along)) {
      if (size > kMaxFrameBytes) break;
      frame.resize(size);
      if (!read_exactly(frame) || !callbacks_.on_frame(frame, std::move(along))) break;
      if (frame.capacity() > (std::size_t{1} << 20)) frame = {};
    }
  } catch (const std::exception& error) {
    log_error("a channel ends: {}", error.what());
  }
  close();
  if (callbacks_.on_closed) callbacks_.on_closed();
}

void Channel::write() {
  while (const auto next = outbox_.pop()) {
    const std::uint64_t size = next->frame.size();
    if (!write_exactly(std::as_bytes(std::span(&size, 1)), next->along.get()) ||
        !write_exactly(std::as_bytes(std::span(next->frame)))) {
      close();  // half a frame is on its way: neither direction can go on
      break;
    }
  }
  std::lock_guard lock(mutex_);
  writer_done_ = true;
  written_.notify_all();
}

}  // namespace mstar::wire
