// The host as a device: plain memory, no queues; a call is done when it returns.
#pragma once

#include <memory>

#include "mstar/device/device.h"

namespace mstar {

// Thread: any. Memory comes from the C++ heap, 256-aligned.
std::unique_ptr<Device> make_cpu_device();

// Names the instruction set that the kernels need and this processor lacks; empty when it can run them.
std::string missing_cpu_features();

}  // namespace mstar
