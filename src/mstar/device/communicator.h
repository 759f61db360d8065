// What the ranks of a group that works in step say to each other: sums, gathers, exchanges, broadcasts of device
// memory.
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
  // rounded once, in the order of the ranks; but NCCL adds and rounds as it does.
  virtual Status all_reduce(void* data, std::size_t count, DType dtype, Stream stream) = 0;
  // `to` holds size() parts of `bytes_per_rank`, rank r's at r * bytes_per_rank. `from` may be the own part of `to`.
  virtual Status all_gather(const void* from, void* to, std::size_t bytes_per_rank, Stream stream) = 0;
  // `from` and `to` hold size() parts of `bytes_per_rank` each: part r of `from` goes to rank r, part r of `to` comes
  // from rank r. They do not overlap.
  virtual Status all_to_all(const void* from, void* to, std::size_t bytes_per_rank, Stream stream) = 0;
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

// One rank's ends of the groups that it is in (device/rank_mesh.h); null: alone. One end may stand for several groups.
// Borrowed. Thread: as of the ends.
struct MeshEnds {
  Communicator* all = nullptr;       // of every rank that works in step
  Communicator* tensor = nullptr;    // of those that hold the other parts of its weights
  Communicator* sequence = nullptr;  // of those that have the other rows

  MeshEnds() = default;
  MeshEnds(Communicator* everyone) : all(everyone), tensor(everyone) {}  // all of them hold parts of weights
  MeshEnds(Communicator* everyone, Communicator* of_weights, Communicator* of_rows)
      : all(everyone), tensor(of_weights), sequence(of_rows) {}
  MeshSize size() const { return {ranks_of(tensor).size, ranks_of(sequence).size}; }
  bool alone() const { return !all; }
  // The first failure of a group; ok where there is none.
  Status failure() const {
    for (const Communicator* const each : {all, tensor, sequence})
      if (each) MSTAR_TRY(each->failure());
    return ok_status();
  }
  // Of all of them.
  void abort(const std::string& reason) const {
    for (Communicator* const each : {all, tensor, sequence})
      if (each) each->abort(reason);
  }
};

}  // namespace mstar
