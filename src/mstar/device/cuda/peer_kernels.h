// The kernels of peer_communicator.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/base/dtype.h"
#include "mstar/base/result.h"
#include "mstar/device/device.h"

namespace mstar::cuda {

inline constexpr int kMostPeers = 8;
inline constexpr std::size_t kLineBytes = 8;  // of a message; with the call's number twice they take 16

// One rank's view of its group. Plain pointers, passed to kernels as they are.
struct PeerView {
  // Each rank's memory for what others write: [2 calls in turn][size ranks][lines] of 16 bytes.
  unsigned char* inboxes[kMostPeers] = {};
  std::size_t lines = 0;
  std::uint32_t* calls = nullptr;         // of this rank: calls so far, blocks of this one that have ended
  const volatile int* aborted = nullptr;  // of the host
  int rank = 0, size = 1;
  // Some of the ranks are on one device: who waits leaves room for whom it waits for.
  bool shares_device = false;
};

// data[i] becomes the sum over the ranks, i < count; count * bytes of dtype <= lines * kLineBytes.
Status peer_all_reduce(const PeerView& view, void* data, std::size_t count, DType dtype, Stream stream);
// What rank r has for this one, [bytes], goes to to + r * to_stride, and from + r * from_stride to rank r. `root` >= 0:
// only that rank's is written, and not by itself.
struct PeerExchange {
  const void* from = nullptr;
  std::size_t from_stride = 0;
  void* to = nullptr;
  std::size_t to_stride = 0;
  std::size_t bytes = 0;  // <= lines * kLineBytes
  int root = -1;
};
Status peer_exchange(const PeerView& view, const PeerExchange& exchange, Stream stream);

}  // namespace mstar::cuda
