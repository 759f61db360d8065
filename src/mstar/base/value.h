// What an edge of a walk carries: bytes on the host, or a buffer that stays on its device.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/result.h"

namespace mstar {

// A tensor on some device, immutable once published; the last holder frees it. The host tower only passes it on.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual DType dtype() const = 0;
  virtual Dims dims() const = 0;
  virtual std::size_t size_bytes() const = 0;
  // Waits for the device. Thread: any.
  virtual Result<HostValue> to_host() const = 0;
};

// A HostValue, a shared DeviceBuffer (owners: every slot, kept port or message that holds the value), or both: small
// results that the host has read already keep their bytes beside the buffer.
struct Value {
  HostValue host;
  std::shared_ptr<const DeviceBuffer> device;

  Value() = default;
  Value(HostValue h) : host(std::move(h)) {}                              // NOLINT: implicit on purpose
  Value(std::shared_ptr<const DeviceBuffer> d) : device(std::move(d)) {}  // NOLINT: implicit on purpose
  bool on_host() const { return device == nullptr || !host.is_signal(); }
  bool is_signal() const { return device == nullptr && host.is_signal(); }
  Result<HostValue> to_host() const {
    if (device && host.is_signal()) return device->to_host();
    return host;
  }
};
using Values = std::vector<Value>;

}  // namespace mstar
