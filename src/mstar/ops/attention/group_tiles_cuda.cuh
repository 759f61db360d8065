// What the kernels of attention by warp groups share: tiles of 64 columns in shared memory as products read them, and
// products whose first operand is in registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/ops/attention/tile_cuda.cuh"
#include "mstar/ops/hopper.cuh"

namespace mstar::cuda {

inline constexpr int kGroupThreads = 128;
inline constexpr int kGroupPairs = 64;              // rows of a warp group's products
inline constexpr int kTileColumns = 64;             // what a swizzle of 128 bytes spans
inline constexpr int kRowBytes = kTileColumns * 2;  // of bf16
inline constexpr int kRowChunks = kRowBytes / 16;
inline constexpr int kEights = kTileColumns / 8;

// Rows of 128 bytes; chunk c of row r lies at c ^ (r % 8). Tiles begin on 1 KiB.
__device__ inline std::byte* chunk_at(std::byte* tile, int row, int chunk) {
  return tile + row * kRowBytes + ((chunk ^ row % 8) << 4);
}

// Operands of products (hopper.cuh): along a row 16 elements further on are 32 bytes; down the rows 16 further on are
// 2 KiB.
inline constexpr std::uint64_t kAlongRow = 32 >> 4, kDownRows = 2048 >> 4;  // 16 elements, as operands count

// What threads wrote to shared memory, for products after the block's next barrier.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define MSTAR_SUMS(d)                                                                                          \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),     \
      "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), \
      "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), \
      "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), \
      "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
#define MSTAR_THIRTY_TWO                                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"

// d [64][64] += a [64][16] b [16][64]: a in registers as of mma.m16n8k16, rows of b along the 64.
__device__ inline void multiply_weights(float (&d)[kEights][4], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " MSTAR_THIRTY_TWO
      ", {%32, %33, %34, %35}, %36, add, 1, 1, 1;}\n"
      : MSTAR_SUMS(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef MSTAR_THIRTY_TWO
#undef MSTAR_SUMS

}  // namespace mstar::cuda
