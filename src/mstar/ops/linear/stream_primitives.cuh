// The instructions that linear_stream_cuda.cu is made of.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace mstar::cuda {

// Starts a copy of 16 bytes to an address of shared memory; only the first `bytes` (0 or 16) are read, the others are
// zero. Past the L1 cache; the L2 cache is asked for the whole line.
__device__ inline unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
__device__ inline void copy_16_async(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of the thread's groups are under way.
template <int kPending>
__device__ inline void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// `from` and `bytes` on 16 bytes.
__device__ inline void prefetch_to_l2(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// sums [16][8] += a [16][16] b [16][8] in f32. Lane l holds, with g = l / 4 and t = l % 4: of a the pairs (row g, k
// 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); of b the pairs (k 2t, column g), (2t + 8, g); of the sums (row g,
// columns 2t and 2t + 1) and (g + 8, the same).
__device__ inline void multiply_16_8_16(__nv_bfloat16, float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                        unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void multiply_16_8_16(__half, float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                        unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// All threads of a cluster of blocks meet: what was written before arriving is seen after waiting.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ inline int rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
}  // namespace mstar::cuda
