// What every op gets: where it runs and what it may use. Passed explicitly; there is no ambient stream or allocator.
#pragma once

#include <algorithm>

#include "mstar/device/communicator.h"
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
  // Of what lies between two products of a block: f32, on CUDA mostly bf16. The residual stream and logits are f32.
  DType activations = DType::f32;
  // Of the ranks that hold the other parts of the weights; null: alone. Its calls are on `stream`.
  Communicator* communicator = nullptr;
  // Of the ranks that have the other rows of the step; null: this one has all. Likewise.
  Communicator* sequence = nullptr;

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
  // For point-wise work: body(row) in tiles of about 16k elements, so that a few short rows stay on the calling thread.
  template <class Body>
  void parallel_for_rows(std::int64_t num_rows, std::int64_t row_elements, Body&& body) {
    constexpr std::int64_t kTileElements = 16384;
    const std::int64_t rows = std::max<std::int64_t>(1, kTileElements / std::max<std::int64_t>(1, row_elements));
    parallel_for((num_rows + rows - 1) / rows, [&](std::int64_t tile, int) {
      for (std::int64_t row = tile * rows; row < std::min(num_rows, (tile + 1) * rows); ++row) body(row);
    });
  }
  Ranks ranks() const { return ranks_of(communicator); }
  int num_threads() const { return pool ? pool->num_threads() : 1; }
};

}  // namespace mstar
