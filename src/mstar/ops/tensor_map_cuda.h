// What the copy engine needs to know of a matrix in device memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mstar/base/dtype.h"

namespace mstar::cuda {

// Describes rows [rows, columns] of bf16 or f16, `stride` elements apart, for copies of boxes of box_rows x 64 elements
// to shared memory, where chunk c of 16 bytes of row r (of 128 bytes) lies at chunk c ^ (r % 8): the swizzle of 128
// bytes that products of a warp group read without conflicts. What lies outside of the matrix is copied as zeros. Host
// only, less than a microsecond. False: the driver refuses (rows or pointer not on 16 bytes, a stride below the row).
bool describe_rows(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride, DType dtype,
                   int box_rows, CUtensorMap& to);

// The same of rows [2 half, columns] without gaps, the rows of gate before those of up: a box has `groups` times 8 rows
// of gate and the 8 of up that belong to them. False also where half is no multiple of 8.
bool describe_gated_rows(const void* data, std::int64_t half, std::int64_t columns, DType dtype, int groups,
                         CUtensorMap& to);

}  // namespace mstar::cuda
