#include "mstar/ops/tensor_map_cuda.h"

#include <cuda_runtime.h>

namespace mstar::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function through the runtime, so that no program links the driver's library.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kSince = 12000;  // CUDA's version that has it
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Encode>(found);
}

constexpr cuuint32_t kBoxColumns = 64, kElementBytes = 2;

// Sizes and boxes of kDims dimensions, strides (bytes) of all but the first.
template <int kDims>
bool describe(const void* data, DType dtype, const cuuint64_t (&sizes)[kDims], const cuuint64_t (&strides)[kDims - 1],
              const cuuint32_t (&box)[kDims], CUtensorMap& to) {
  static const Encode encode = find_encode();
  if (!encode) return false;
  cuuint32_t steps[kDims];
  for (cuuint32_t& step : steps) step = 1;
  const CUtensorMapDataType type =
      dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(&to, type, kDims, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

cuuint64_t unsigned_of(std::int64_t value) { return static_cast<cuuint64_t>(value); }

}  // namespace

bool describe_rows(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride, DType dtype,
                   int box_rows, CUtensorMap& to) {
  // One row has no stride; what is given must still be valid.
  const std::int64_t apart = rows > 1 ? stride : (columns + 7) / 8 * 8;
  if (apart < columns) return false;
  return describe<2>(data, dtype, {unsigned_of(columns), unsigned_of(rows)}, {unsigned_of(apart) * kElementBytes},
                     {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, to);
}

bool describe_gated_rows(const void* data, std::int64_t half, std::int64_t columns, DType dtype, int groups,
                         CUtensorMap& to) {
  constexpr std::int64_t kRows = 8;
  if (half % kRows != 0) return false;
  const cuuint64_t row_bytes = unsigned_of(columns) * kElementBytes;
  return describe<4>(data, dtype, {unsigned_of(columns), unsigned_of(kRows), 2, unsigned_of(half / kRows)},
                     {row_bytes, unsigned_of(half) * row_bytes, unsigned_of(kRows) * row_bytes},
                     {kBoxColumns, static_cast<cuuint32_t>(kRows), 2, static_cast<cuuint32_t>(groups)}, to);
}

}  // namespace mstar::cuda
