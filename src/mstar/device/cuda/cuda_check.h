// What becomes of CUDA's return codes. For cuda_device.cc and the .cu files of ops alone.
#pragma once

#include <cuda_runtime_api.h>

#include "mstar/base/result.h"

namespace mstar {

// Ends the process with CUDA's text unless the call worked.
void check_cuda(cudaError_t error, const char* call);

// After a kernel launch: internal when this launch was refused (its shape, its resources); a fault of earlier work that
// sticks to the process ends it.
Status cuda_launch_status(const char* op);

}  // namespace mstar
