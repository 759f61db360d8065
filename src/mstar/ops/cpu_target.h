// Which instruction set the CPU kernels use. Chosen once from CPUID; tests run every one that the machine has.
#pragma once

#include <string_view>
#include <vector>

namespace mstar {

// Float kernels give the same bits on all of them; so do i8 kernels, whose sums are exact.
enum class CpuTarget { avx2, avx512, avx512_vnni };

std::string_view cpu_target_name(CpuTarget target);
// What this machine has, weakest first; empty off x86, where the kernels are compiled for one target.
std::vector<CpuTarget> cpu_targets();
// The one in use.
CpuTarget cpu_target();
// For tests and benches: forces a target of cpu_targets(). Thread: none may run an op meanwhile.
void force_cpu_target(CpuTarget target);

}  // namespace mstar
