// Short writes to many sockets in one system call.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mstar::server {

// Thread: one for all of its life from the first send() on. With io_uring (Linux, where it is built in and the system
// allows it) all frames of a batch are given to the kernel at once; without, each takes a send() of its own.
class SendBatch {
 public:
  struct Item {
    int socket = -1;
    std::size_t begin = 0, size = 0;  // in the batch's bytes
    std::ptrdiff_t result = 0;        // bytes that the socket took, or -errno
  };

  explicit SendBatch(bool io_uring);
  ~SendBatch();

  // Copies the frame. The socket stays open until send() returns; one frame a socket keeps their order.
  void add(int socket, std::string_view frame);
  std::size_t size() const { return items_.size(); }
  // Never blocks: a socket whose buffer is full takes a part or -EAGAIN. The results are in the order of add() and
  // valid until clear().
  const std::vector<Item>& send();
  std::string_view frame(const Item& item) const { return std::string_view(bytes_).substr(item.begin, item.size); }
  void clear();
  bool uses_io_uring() const { return ring_ != nullptr; }  // known after a batch of more than one frame

 private:
  struct Ring;
  void send_each(std::size_t first);

  std::string bytes_;
  std::vector<Item> items_;
  bool wants_ring_;
  std::unique_ptr<Ring> ring_;  // null: none, or none yet
};

}  // namespace mstar::server
