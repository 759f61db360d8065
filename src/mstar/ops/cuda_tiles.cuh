// Products of 16-bit tiles on tensor cores: mma.sync m16n8k16 of bf16 with sums in f32, and how its operands come out
// of shared memory. Rows of a tile begin on 16 bytes; rows 16 bytes more than a multiple of 128 apart keep off one
// another's banks.
#pragma once

#include <cstdint>

#include "mstar/ops/cuda_kernel.cuh"

namespace mstar::cuda {

using Bf16 = __nv_bfloat16;

// The four 8x8 matrices of a 16x16 tile, one address a lane. RowsFirst: matrices 0 and 1 are above one another;
// otherwise beside one another.
struct TileLane {
  int row = 0, column = 0;
};
__device__ inline TileLane rows_first(int lane) { return {lane % 8 + 8 * (lane / 8 % 2), 8 * (lane / 16)}; }
__device__ inline TileLane columns_first(int lane) { return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)}; }

struct Tile {
  std::uint32_t words[4];
};
// As A [m][k] with rows_first; as two B [n][k] (n 0..7, then 8..15) with columns_first.
__device__ inline Tile load_tile(const Bf16* at) {
  Tile tile;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(tile.words[0]), "=r"(tile.words[1]), "=r"(tile.words[2]), "=r"(tile.words[3])
               : "r"(address)
               : "memory");
  return tile;
}
// As A from its transpose [k][m] with columns_first; as two B from [k][n] with rows_first.
__device__ inline Tile load_tile_transposed(const Bf16* at) {
  Tile tile;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(tile.words[0]), "=r"(tile.words[1]), "=r"(tile.words[2]), "=r"(tile.words[3])
               : "r"(address)
               : "memory");
  return tile;
}

// What load_tile_transposed() reads from the same place.
__device__ inline void store_tile_transposed(const Tile& tile, Bf16* at) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(tile.words[0]),
               "r"(tile.words[1]), "r"(tile.words[2]), "r"(tile.words[3])
               : "memory");
}

// sums [16][8] += A [16][16] B [16][8], B the first or second of a pair. A lane has sums of row lane / 4 (0 and 1) and
// eight below (2 and 3), of columns lane % 4 * 2 and the next.
__device__ inline void multiply(const Tile& a, const Tile& pair, int which, float (&sums)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(pair.words[2 * which]),
        "r"(pair.words[2 * which + 1]));
}

__device__ inline std::uint32_t pack(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}
__device__ inline float2 unpack(std::uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
// Two f32 as bf16 and what bf16 leaves of them: 16 bits of each.
__device__ inline void split(float x, float y, std::uint32_t& high, std::uint32_t& low) {
  high = pack(x, y);
  const float2 back = unpack(high);
  low = pack(x - back.x, y - back.y);
}
// Two neighbours of sums [16][8] as A [16][16], in two parts.
__device__ inline void split_as_a(const float (&first)[4], const float (&second)[4], Tile& high, Tile& low) {
  split(first[0], first[1], high.words[0], low.words[0]);
  split(first[2], first[3], high.words[1], low.words[1]);
  split(second[0], second[1], high.words[2], low.words[2]);
  split(second[2], second[3], high.words[3], low.words[3]);
}
// The same as two B whose n are the sums' rows: what load_tile() with columns_first would read of them.
__device__ inline void split_as_b(const float (&first)[4], const float (&second)[4], Tile& high, Tile& low) {
  split(first[0], first[1], high.words[0], low.words[0]);
  split(second[0], second[1], high.words[1], low.words[1]);
  split(first[2], first[3], high.words[2], low.words[2]);
  split(second[2], second[3], high.words[3], low.words[3]);
}
// A tile as it lies in registers, 16 bytes a lane.
__device__ inline Tile tile_of(const uint4& words) { return {{words.x, words.y, words.z, words.w}}; }
__device__ inline uint4 words_of(const Tile& tile) {
  return make_uint4(tile.words[0], tile.words[1], tile.words[2], tile.words[3]);
}

// 16 bytes from global to shared memory behind the thread's back; zeros where not `real`.
__device__ inline void copy_16(void* to, const void* from, bool real) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of the groups that this thread ended are on their way.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mstar::cuda
