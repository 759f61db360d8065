// What the runtime asks of a device: memory, streams, events. cpu/ and cuda/ implement it; only cuda/ calls the CUDA
// runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mstar/base/result.h"
#include "mstar/base/step_profile.h"

namespace mstar {

enum class Backend : std::uint8_t { cpu, cuda };

struct DeviceId {
  Backend backend = Backend::cpu;
  int index = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

// An order of work on a device. On the CPU work is done when the call returns; `native` is the cudaStream_t on CUDA.
struct Stream {
  void* native = nullptr;
};

// A point in a stream. On the CPU it is reached at once.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream stream) = 0;
  // Host waits. The one blocking call of a worker's step loop.
  virtual void wait() = 0;
  virtual bool reached() const = 0;
  // Later work of `stream` waits for the recorded point.
  virtual void wait_on(Stream stream) = 0;
  // Microseconds of the device's clock between two reached points; both events were made with `timed`, else 0.
  virtual double us_since(const Event& earlier) const = 0;
};

// A device-side work graph recorded from a stream, replayed with one launch. Reads and writes the memory that was bound
// when it was recorded. Thread: the owner of the stream.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  virtual Status launch(Stream stream) = 0;
  virtual std::size_t num_nodes() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceId id() const = 0;
  // For people: processor or GPU name with its memory.
  virtual std::string description() const = 0;
  virtual std::size_t total_bytes() const = 0;
  // Bytes are 256-aligned. exhausted when it cannot be had; internal under capture. Thread: any.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) = 0;
  // Likewise, for what stays as long as a model and is read in every step: on a CPU in huge pages.
  virtual Result<void*> allocate_weights(std::size_t bytes) { return allocate(bytes); }
  virtual void release_weights(void* pointer) { release(pointer); }
  // Pinned where the device can use it.
  virtual Result<void*> allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* pointer) = 0;
  // Allocations since the start, of device and of pinned memory: what must stand still once steps are warm.
  virtual std::int64_t num_allocations() const = 0;
  // Also makes the device the calling thread's current one, so that ops may launch on the stream.
  virtual Stream default_stream() = 0;
  // Orders of their own for copies from and to the host beside what the default stream does, where the device has such;
  // else the default stream. What depends on the other stream needs an event.
  virtual Stream upload_stream() { return default_stream(); }
  virtual Stream readback_stream() { return default_stream(); }
  virtual Result<std::unique_ptr<Event>> make_event(bool timed = false) = 0;
  // Copies between host and device or within the device, ordered on `stream`; host memory should be pinned.
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_within(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void fill_zero(void* to, std::size_t bytes, Stream stream) = 0;
  virtual void synchronize(Stream stream) = 0;
  // Whether a call returns while its work still runs, so that the next step is worth preparing meanwhile. False where
  // work is done when the call returns: then a step ahead would only come earlier than its inputs.
  virtual bool is_asynchronous() const { return false; }
  // Between begin and end the stream's work is recorded, not run; allocations and waits are refused.
  virtual bool supports_capture() const { return false; }
  virtual Status begin_capture(Stream) { return internal_error("this device does not capture graphs"); }
  virtual Result<std::unique_ptr<CapturedGraph>> end_capture(Stream) {
    return internal_error("this device does not capture graphs");
  }
  // Shows phases of the host in a timeline that a tool makes of this device's work; null where there is none.
  virtual RangeMarker* range_marker() { return nullptr; }
};

// Bump memory for one step: everything a forward needs beyond its inputs and outputs. Sized once, reset each step.
// Thread: the owner of the step. A request past the end is a broken plan (MSTAR_CHECK): `needed_bytes` was wrong.
class Arena {
 public:
  Arena() = default;
  Arena(void* base, std::size_t bytes) : base_(static_cast<std::byte*>(base)), size_(bytes) {}
  void* take(std::size_t bytes);
  void reset() { used_ = 0; }
  // Marks and rewinds a nested scope, so that layers reuse the same bytes.
  std::size_t mark() const { return used_; }
  void rewind(std::size_t mark) { used_ = mark; }
  std::size_t capacity_bytes() const { return size_; }
  std::size_t peak_bytes() const { return peak_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace mstar
