// What every op gets: where it runs and what it may use. Passed explicitly; there is no ambient stream or allocator.
#pragma once

#include "mstar/device/device.h"
#include "mstar/device/thread_pool.h"
#include "mstar/tensor/tensor.h"

namespace mstar {

// Thread: the step's owner. Ops never allocate: temporaries come from `arena`, which the step rewinds.
struct OpContext {
  Device& device;
  Stream stream;
  Arena& arena;
  ThreadPool* pool = nullptr;  // CPU only; null means the calling thread alone

  Backend backend() const { return device.id().backend; }
  TensorView temporary(DType dtype, Shape shape) {
    return TensorView(arena.take(static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype)), dtype, shape,
                      device.id());
  }
  template <class Body>
  void parallel_for(std::int64_t num_tiles, Body&& body) {
    if (pool) {
      pool->parallel_for(num_tiles, body);
    } else {
      for (std::int64_t tile = 0; tile < num_tiles; ++tile) body(tile, 0);
    }
  }
  int num_threads() const { return pool ? pool->num_threads() : 1; }
};

}  // namespace mstar
