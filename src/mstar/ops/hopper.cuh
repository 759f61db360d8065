// What compute capability 9.0a has beyond earlier ones, an instruction a function: barriers that count bytes, boxes
// copied by the copy engine, products of a warp group (four warps, the first one's index a multiple of four).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace mstar::cuda {

__device__ inline unsigned address_in_shared(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Barriers: 8 bytes of shared memory by address. A phase ends when `arrivals` threads have arrived and all bytes that
// were announced have come.
__device__ inline void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last init_barrier(): the copy engine sees them; threads see them after the block's next barrier.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_and_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended.
__device__ inline void wait_for_phase(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ended;\n"
      "bra again;\n"
      "ended:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A box of the matrix that `map` (__grid_constant__) describes, from (column, row) on; its bytes count for `barrier`.
__device__ inline void copy_box(unsigned to, const CUtensorMap& map, int column, int row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ inline void copy_box(unsigned to, const CUtensorMap& map, int i, int j, int k, int l, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(&map), "r"(i), "r"(j), "r"(k), "r"(l), "r"(barrier)
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline int rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// Clusters. All blocks' barriers are there for all after arrive_with_barriers() (behind publish_barriers()) and
// wait_for_cluster(); threads that have ended count as arrived.
__device__ inline void arrive_with_barriers() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Where block `rank` of the cluster has what lies at `own` here.
__device__ inline unsigned address_of_rank(unsigned own, int rank) {
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
  return remote;
}
// Its four bytes count for `barrier` of the same block, so that no fence is needed: who waits there sees them.
__device__ inline void store_at_rank(unsigned remote, float value, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
}
// The same of eight bytes, on eight.
__device__ inline void store_pair_at_rank(unsigned remote, float x, float y, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(remote),
               "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(barrier)
               : "memory");
}

// An operand in shared memory: rows of 64 elements of 16 bits under the swizzle of 128 bytes, groups of 8 rows on 1 KiB
// after one another. 16 elements further along a row are 32 bytes: add 2.
__device__ inline std::uint64_t operand_at(unsigned address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kGroupBytes = 1024;
  return kSwizzle128 | ((kGroupBytes >> 4) << 32) | (std::uint64_t{1} << 16) | ((address & 0x3ffffu) >> 4);
}

// Around products whose sums are in registers.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kPending closed groups are under way.
template <int kPending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler may not move what uses the sums past here.
template <int kTiles>
__device__ inline void pin(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[j][i])::"memory");
}

// sums [64][8 kTiles] = (add ? sums : 0) + a [64][16] b [8 kTiles][16]^T in f32. Lane l of warp w holds of every tile j
// of eight columns: row 16 w + l / 4, columns 8 j + l % 4 * 2 and the next; then the same of the row 8 below.
#define MSTAR_PRODUCT(TYPE, NAME)                                                                                      \
  __device__ inline void multiply_group(TYPE, float(&d)[1][4], std::uint64_t a, std::uint64_t b, bool add) {           \
    asm volatile(                                                                                                      \
        "{.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"                                                                      \
        "wgmma.mma_async.sync.aligned.m64n8k16.f32." NAME "." NAME " {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;}\n"         \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])                                                   \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                                 \
  }                                                                                                                    \
  __device__ inline void multiply_group(TYPE, float(&d)[2][4], std::uint64_t a, std::uint64_t b, bool add) {           \
    asm volatile(                                                                                                      \
        "{.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"                                                                     \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." NAME "." NAME                                                    \
        " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, 0, 0;}\n"                                                        \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),     \
          "+f"(d[1][3])                                                                                                \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                                 \
  }                                                                                                                    \
  __device__ inline void multiply_group(TYPE, float(&d)[4][4], std::uint64_t a, std::uint64_t b, bool add) {           \
    asm volatile(                                                                                                      \
        "{.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                                                     \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME                                                    \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;}\n"                        \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),     \
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),     \
          "+f"(d[3][2]), "+f"(d[3][3])                                                                                 \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                                 \
  }                                                                                                                    \
  __device__ inline void multiply_group(TYPE, float(&d)[6][4], std::uint64_t a, std::uint64_t b, bool add) {           \
    asm volatile(                                                                                                      \
        "{.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"                                                                     \
        "wgmma.mma_async.sync.aligned.m64n48k16.f32." NAME "." NAME                                                    \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, %24, %25, p, 1, "   \
        "1, 0, 0;}\n"                                                                                                  \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),     \
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),     \
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),     \
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3])                                                                  \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                                 \
  }                                                                                                                    \
  __device__ inline void multiply_group(TYPE, float(&d)[8][4], std::uint64_t a, std::uint64_t b, bool add) {           \
    asm volatile(                                                                                                      \
        "{.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                                     \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME                                                    \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
        "%29,"                                                                                                         \
        "%30,%31}, %32, %33, p, 1, 1, 0, 0;}\n"                                                                        \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),     \
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),     \
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),     \
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),     \
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])                                                   \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                                 \
  }
MSTAR_PRODUCT(__nv_bfloat16, "bf16")
MSTAR_PRODUCT(__half, "f16")
#undef MSTAR_PRODUCT

}  // namespace mstar::cuda
