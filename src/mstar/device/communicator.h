// What the ranks of a group that works in step say to each other: sums, gathers, broadcasts of device memory.
#pragma once

#include <cstddef>
#include <string>

#include "mstar/base/dtype.h"
#include "mstar/base/result.h"
#include "mstar/base/shares.h"
#include "mstar/device/device.h"

namespace mstar {

// One rank's end of a group. Every rank makes the same calls with the same sizes in the same order; a call ends (on a
// device that works by itself: its work in the stream ends) when all ranks have made it. All ranks get the same bits.
// Allocates nothing in a call. Under capture the calls are recorded where the device captures.
// Thread: the owner of the stream, but for abort() and failure().
// Errors of every call: unavailable once the group was aborted, on all ranks and for good; internal when ranks called
// different things, which aborts the group.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;
  // data[i] becomes the sum over the ranks of data[i]; f32, bf16 or f16. Of 16-bit numbers each sum is made in f32 and
  // rounded once where the ranks are threads; NCCL rounds as it does.
  virtual Status all_reduce(void* data, std::size_t count, DType dtype, Stream stream) = 0;
  // `to` holds size() parts of `bytes_per_rank`, rank r's at r * bytes_per_rank. `from` may be the own part of `to`.
  virtual Status all_gather(const void* from, void* to, std::size_t bytes_per_rank, Stream stream) = 0;
  // `data` of rank `root` goes to the others.
  virtual Status broadcast(void* data, std::size_t bytes, int root, Stream stream) = 0;
  // Ends the group: whoever waits in a call, on any rank, gets `unavailable` with this reason, and so does every later
  // call. The first reason stays. Thread: any; returns at once.
  virtual void abort(std::string reason) = 0;
  // ok until the group was aborted. Thread: any.
  virtual Status failure() const = 0;
};

inline Ranks ranks_of(const Communicator* communicator) {
  return communicator ? Ranks{communicator->rank(), communicator->size()} : Ranks{};
}

}  // namespace mstar
