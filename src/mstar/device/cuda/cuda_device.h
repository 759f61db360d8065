// NVIDIA GPUs as devices. In a build without CUDA the functions are there and say so.
#pragma once

#include <memory>

#include "mstar/device/device.h"

namespace mstar {

// CUDA devices that this process sees; 0 without a driver or in a build without CUDA. Thread: any.
int num_cuda_devices();
// What the device has, without making it this process's own. unavailable.
Result<std::size_t> cuda_device_bytes(int index);

// One stream, which does not wait for the legacy stream; pinned host memory; graphs. Calls that a healthy device cannot
// fail end the process with CUDA's error text: such errors stick to the process (a kernel read foreign memory, the
// device fell off the bus), and only a new process gets the device back. Errors: unavailable (no such device, no
// driver, no CUDA in this build, another architecture than the kernels').
Result<std::unique_ptr<Device>> make_cuda_device(int index);

// What a library of kernels keeps for one device between calls: a handle, the plans that it has made.
class CudaAttachment {
 public:
  virtual ~CudaAttachment() = default;
};
// The one of its kind on `device`, which is a CUDA device; made by the first who asks and destroyed with the device.
// `kind` is an address that no other kind uses. Thread: any; what the attachment does is its own matter. Errors:
// make's.
Result<CudaAttachment*> cuda_attachment(Device& device, const void* kind,
                                        Result<std::unique_ptr<CudaAttachment>> (*make)());

}  // namespace mstar
