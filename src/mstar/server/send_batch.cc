#include "mstar/server/send_batch.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#ifdef MSTAR_IO_URING
#include <liburing.h>
#endif

namespace mstar::server {
namespace {

constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
constexpr std::ptrdiff_t kNoResult = std::numeric_limits<std::ptrdiff_t>::min();
// Above this a batch's buffers are given back.
constexpr std::size_t kKeptBytes = 1 << 20;

}  // namespace

#ifdef MSTAR_IO_URING

struct SendBatch::Ring {
  static constexpr unsigned kEntries = 128;

  static std::unique_ptr<Ring> make() {
    auto out = std::make_unique<Ring>();
    out->is_open = io_uring_queue_init(kEntries, &out->ring, 0) == 0;
    return out->is_open ? std::move(out) : nullptr;
  }
  ~Ring() {
    if (is_open) io_uring_queue_exit(&ring);
  }

  // Sends up to kEntries items. False: the ring is broken, and the items without a result were not sent.
  bool send(const std::string& bytes, Item* items, std::size_t num) {
    for (std::size_t i = 0; i < num; ++i) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring);
      io_uring_prep_send(entry, items[i].socket, bytes.data() + items[i].begin, items[i].size, kFlags);
      io_uring_sqe_set_data64(entry, i);
    }
    for (std::size_t num_done = 0; num_done < num;) {
      // What does not wait for its socket is complete on return; fewer are taken when one could not begin.
      const int taken = io_uring_submit_and_wait(&ring, static_cast<unsigned>(num - num_done));
      num_done += reap(items);
      if (taken < 0 && taken != -EINTR) return num_done == num;
    }
    return true;
  }

  std::size_t reap(Item* items) {
    io_uring_cqe* done = nullptr;
    unsigned head = 0, num = 0;
    io_uring_for_each_cqe(&ring, head, done) {
      items[done->user_data].result = done->res;
      ++num;
    }
    io_uring_cq_advance(&ring, num);
    return num;
  }

  io_uring ring = {};
  bool is_open = false;
};

#else

struct SendBatch::Ring {
  static constexpr unsigned kEntries = 1;
  static std::unique_ptr<Ring> make() { return nullptr; }
  bool send(const std::string&, Item*, std::size_t) { return false; }
};

#endif

SendBatch::SendBatch(bool io_uring) : wants_ring_(io_uring) {}
SendBatch::~SendBatch() = default;

void SendBatch::add(int socket, std::string_view frame) {
  const std::size_t begin = bytes_.size();
  bytes_ += frame;
  items_.push_back({.socket = socket, .begin = begin, .size = frame.size(), .result = kNoResult});
}

// Those that have no result.
void SendBatch::send_each(std::size_t first) {
  for (std::size_t i = first; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (item.result != kNoResult) continue;
    const ssize_t taken = ::send(item.socket, bytes_.data() + item.begin, item.size, kFlags);
    item.result = taken < 0 ? -errno : taken;
  }
}

const std::vector<SendBatch::Item>& SendBatch::send() {
  // Made by the thread that uses it: when a ring ends, the kernel interrupts the thread that made it in what it does.
  if (items_.size() > 1 && std::exchange(wants_ring_, false)) ring_ = Ring::make();
  std::size_t first = 0;
  // One frame alone is cheaper without a ring.
  while (ring_ && items_.size() - first > 1) {
    const std::size_t num = std::min<std::size_t>(Ring::kEntries, items_.size() - first);
    if (!ring_->send(bytes_, items_.data() + first, num)) {
      ring_.reset();
      break;
    }
    first += num;
  }
  send_each(first);
  return items_;
}

void SendBatch::clear() {
  items_.clear();
  bytes_.clear();
  if (bytes_.capacity() > kKeptBytes) bytes_.shrink_to_fit();
}

}  // namespace mstar::server
