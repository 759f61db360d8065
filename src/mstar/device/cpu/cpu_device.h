// The host as a device: plain memory, no queues; a call is done when it returns.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "mstar/device/device.h"

namespace mstar {

// Thread: any. Memory comes from the C++ heap, 256-aligned.
std::unique_ptr<Device> make_cpu_device();

// The least of the machine's memory and a container's limits, as the files memory.max (cgroup v2) and
// memory.limit_in_bytes (v1) hold them; empty, "max" or nonsense: no limit.
std::size_t usable_memory_bytes(std::size_t physical_bytes, std::string_view v2_limit, std::string_view v1_limit);

// The instruction sets that the kernels are compiled for at least (Highway's HWY_AVX2). Off x86-64 they need none.
struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool bmi2 = false;
};
CpuFeatures cpu_features();

// Names those that the kernels need and `features` lacks, as in "AVX2, FMA"; empty when they can run.
std::string missing_cpu_features(const CpuFeatures& features = cpu_features());

// Errors: unavailable, with what is lacking and which processors have it.
Status check_cpu_features(const CpuFeatures& features = cpu_features());

}  // namespace mstar
