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

bool Channel::send(std::string frame) { return frame.size() <= kMaxFrameBytes && outbox_.push(std::move(frame)); }

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

bool Channel::read_exactly(std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::recv(socket_, to.data(), to.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

bool Channel::write_exactly(std::span<const std::byte> from) const {
  while (!from.empty()) {
    const ssize_t put = ::send(socket_, from.data(), from.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from = from.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

void Channel::read() {
  try {
    std::uint64_t size = 0;
    std::vector<std::byte> frame;
    while (read_exactly(std::as_writable_bytes(std::span(&size, 1)))) {
      if (size > kMaxFrameBytes) break;
      frame.resize(size);
      if (!read_exactly(frame) || !callbacks_.on_frame(frame)) break;
      if (frame.capacity() > (std::size_t{1} << 20)) frame = {};
    }
  } catch (const std::exception& error) {
    log_error("a channel ends: {}", error.what());
  }
  close();
  if (callbacks_.on_closed) callbacks_.on_closed();
}

void Channel::write() {
  while (const auto frame = outbox_.pop()) {
    const std::uint64_t size = frame->size();
    if (!write_exactly(std::as_bytes(std::span(&size, 1))) || !write_exactly(std::as_bytes(std::span(*frame)))) break;
  }
  outbox_.close();
  std::lock_guard lock(mutex_);
  writer_done_ = true;
  written_.notify_all();
}

}  // namespace mstar::wire
