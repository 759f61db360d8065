// Ranges of NVTX, which Nsight Systems shows beside the device's work. In the CUDA build alone.
#pragma once

#include "mstar/base/step_profile.h"

namespace mstar {

// Of the calling thread, under the domain "mstar". Without such a tool a range costs a test.
class NvtxMarker final : public RangeMarker {
 public:
  void begin(const char* name) override;
  void end() override;
};

}  // namespace mstar
