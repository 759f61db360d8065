// What one of the two steps in flight of a component owns: pinned staging, the event that ends it, and the memory that
// the graphs of its slot were recorded with.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "mstar/device/device.h"

namespace mstar::engine {

// Host memory that the device copies from or to without a stop. Grows, never shrinks. Move-only.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  explicit PinnedBlock(Device& device) : device_(&device) {}
  PinnedBlock(PinnedBlock&& other) noexcept { *this = std::move(other); }
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;
  ~PinnedBlock();
  // At least `bytes`; what it held before is gone. No copy of it may be under way. exhausted.
  Result<std::byte*> reserve(std::size_t bytes);
  std::byte* data() const { return data_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Output groups: what the host reads each step lies together, so that one copy brings it.
inline constexpr int kHostGroup = 0;
inline constexpr int kDeviceGroup = 1;
inline constexpr int kNumGroups = 2;

// Device memory with fixed addresses. Move-only.
class StaticBlock {
 public:
  StaticBlock() = default;
  static Result<StaticBlock> allocate(Device& device, std::size_t bytes);
  StaticBlock(StaticBlock&& other) noexcept { *this = std::move(other); }
  StaticBlock& operator=(StaticBlock&& other) noexcept;
  ~StaticBlock();
  std::byte* data() const { return data_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
};

struct SlotMemory {
  PinnedBlock upload, readback;
  std::unique_ptr<Event> done;           // the step ran, and the host has what it reads of it
  std::unique_ptr<Event> uploaded, ran;  // what orders the device's streams
  // Of captured steps, sized to the largest bucket; empty when nothing is captured.
  std::vector<StaticBlock> inputs;  // per input slot
  struct Padding {
    std::int64_t begin = 0, end = 0;  // items that hold padding
  };
  std::vector<Padding> padding;  // per input slot
  std::array<StaticBlock, kNumGroups> outputs;
};

// The one activation arena of a device: bytes that any step may use from its start to its end. Engines claim before it
// is sealed; their steps share it because they follow each other on one stream. Owners: the engines.
class ActivationArena {
 public:
  explicit ActivationArena(Device& device) : device_(device) {}
  ~ActivationArena();
  void claim(std::size_t bytes);
  // Allocates the largest claim; later claims must fit. exhausted.
  Status seal();
  // Behind the first `front` bytes, which the caller uses as it likes.
  Arena arena(std::size_t front = 0) const { return Arena(this->front() + front, bytes_ - front); }
  std::byte* front() const { return static_cast<std::byte*>(memory_); }
  std::size_t bytes() const { return bytes_; }

 private:
  Device& device_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace mstar::engine
