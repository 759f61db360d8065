#include "mstar/ops/cpu_target.h"

#include <atomic>

#include "hwy/highway.h"

namespace mstar {
namespace {

bool has_vnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

CpuTarget best_target() {
  const std::vector<CpuTarget> targets = cpu_targets();
  return targets.empty() ? CpuTarget::avx2 : targets.back();
}

std::atomic<CpuTarget>& chosen() {
  static std::atomic<CpuTarget> target{best_target()};
  return target;
}

}  // namespace

std::string_view cpu_target_name(CpuTarget target) {
  switch (target) {
    case CpuTarget::avx2:
      return "avx2";
    case CpuTarget::avx512:
      return "avx512";
    case CpuTarget::avx512_vnni:
      return "avx512_vnni";
  }
  return "";
}

std::vector<CpuTarget> cpu_targets() {
  std::vector<CpuTarget> out;
#if defined(__x86_64__)
  // Every kernel file may ask for less than a forced target, so the real machine is asked here.
  static const std::int64_t supported = hwy::SupportedTargets();
  if (supported & HWY_AVX2) out.push_back(CpuTarget::avx2);
  if (supported & HWY_AVX3) out.push_back(CpuTarget::avx512);
  if ((supported & HWY_AVX3) && has_vnni()) out.push_back(CpuTarget::avx512_vnni);
#endif
  return out;
}

CpuTarget cpu_target() { return chosen().load(std::memory_order_relaxed); }

void force_cpu_target(CpuTarget target) {
  cpu_targets();
#if defined(__x86_64__)
  const std::int64_t mask = target == CpuTarget::avx2 ? HWY_AVX2 : HWY_AVX2 | HWY_AVX3;
  hwy::SetSupportedTargetsForTest(mask);
  hwy::GetChosenTarget().Update(mask);
#endif
  chosen().store(target, std::memory_order_relaxed);
}

}  // namespace mstar
