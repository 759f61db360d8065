// Frames over a connected stream socket: a queue and a thread for each direction.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "mstar/base/queue.h"
#include "mstar/base/result.h"

namespace mstar::wire {

// A larger frame is refused on both sides.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 30;

// Two connected stream sockets, closed by exec. unavailable when the system has none left.
Result<std::array<int, 2>> make_socket_pair();

// A file descriptor with one owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }  // -1: none
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A frame travels as its length (u64) and its bytes; a descriptor may come along. Thread: any for every call; callbacks
// come from the reader's thread.
class Channel {
 public:
  struct Callbacks {
    // A false answer closes the channel. `along`: the descriptor that came with the frame.
    std::function<bool(std::span<const std::byte>, Descriptor along)> on_frame;
    // Once, after the last frame: the peer closed, sent nonsense, or close() was called.
    std::function<void()> on_closed;
  };
  // Takes over `socket`.
  Channel(int socket, Callbacks callbacks);
  // Like close() without a flush. Not from a callback.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Queues the frame: never waits for the peer, however full it is, and goes on receiving meanwhile. False when the
  // channel is closed or the frame too large.
  bool send(std::string frame, Descriptor along = {});
  // Ends both directions. Frames that are queued may be lost.
  void close();
  // Waits until what was queued is with the system, at most for `timeout`; then close(). No send() is taken any more.
  void flush_and_close(std::chrono::milliseconds timeout);

 private:
  struct Outgoing {
    std::string frame;
    Descriptor along;
  };
  void read();
  void write();
  bool read_exactly(std::span<std::byte> to, Descriptor* along = nullptr) const;
  bool write_exactly(std::span<const std::byte> from, int along = -1) const;

  const int socket_;
  Callbacks callbacks_;
  Queue<Outgoing> outbox_;
  std::mutex mutex_;
  std::condition_variable written_;
  bool writer_done_ = false;
  std::thread reader_, writer_;
};

}  // namespace mstar::wire
