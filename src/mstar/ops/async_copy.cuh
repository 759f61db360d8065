// Copies to shared memory behind a thread's back (compute capability 8.0 on).
#pragma once

#include "mstar/ops/hopper.cuh"

namespace mstar::cuda {

// Starts a copy of 16 bytes to an address of shared memory, past the L1 cache; the L2 cache is asked for the whole
// line.
__device__ inline void copy_16_async(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same of 8 bytes, through the L1 cache.
__device__ inline void copy_8_async(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of the thread's groups are under way.
template <int kPending>
__device__ inline void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mstar::cuda
