// Output memory of steps: device buffers that are recycled, shared by the rows of a batch, and read by later steps.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "mstar/base/value.h"
#include "mstar/device/device.h"
#include "mstar/engine/free_list.h"
#include "mstar/tensor/tensor.h"

namespace mstar::engine {

// Recycles device memory, so that a warm step allocates nothing: parts of what was reserved, and, where that has no
// room, blocks by size class. Must outlive its buffers (shared owners). Thread: any; buffers come back from whichever
// thread drops the last reference.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Blocks of up to so many bytes have memory apart: those that a few rows hold for long do not cut up that of the
  // large ones. A free one serves whoever asks for less.
  static constexpr std::size_t kSmallBlock = 64 << 10;

  explicit BufferPool(Device& device) : device_(device) {}
  ~BufferPool();

  struct Block {
    std::shared_ptr<BufferPool> pool;
    void* pointer = nullptr;
    std::size_t bytes = 0;
    int region = -1;  // of what was reserved; -1: of a size class
    Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block();
  };
  // Owners of a block: the row buffers cut from it.
  Result<std::shared_ptr<Block>> take(std::size_t bytes);
  // Memory for blocks of all these sizes at once, beside what was reserved before.
  Status reserve(std::span<const std::size_t> sizes);
  Device& device() { return device_; }
  std::int64_t num_allocations() const;  // fresh ones, for the step-path counter
  std::size_t held_bytes() const;

 private:
  struct Region {
    std::byte* base;
    bool is_small;
    FreeList free;
  };
  Status reserve_region(std::size_t num_bytes, bool is_small);
  bool take_reserved(Block& block, bool is_small);
  void take_free(Block& block);
  void give_back(const Block& block);
  Device& device_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;
  std::map<std::size_t, std::vector<void*>> free_;
  std::int64_t num_allocations_ = 0;
  std::size_t held_bytes_ = 0;
};

// One row's part of a batch's output.
class RowBuffer final : public DeviceBuffer {
 public:
  RowBuffer(std::shared_ptr<BufferPool::Block> block, TensorView view) : block_(std::move(block)), view_(view) {}
  DType dtype() const override { return view_.dtype; }
  Dims dims() const override { return view_.shape.dims(); }
  std::size_t size_bytes() const override { return view_.bytes(); }
  Result<HostValue> to_host() const override;
  TensorView view() const { return view_; }
  // What the host has read of it; a signal before. Thread: the step loop's.
  const HostValue& read() const { return read_; }
  void set_read(HostValue value) { read_ = std::move(value); }

 private:
  std::shared_ptr<BufferPool::Block> block_;
  TensorView view_;
  HostValue read_;
};

}  // namespace mstar::engine
