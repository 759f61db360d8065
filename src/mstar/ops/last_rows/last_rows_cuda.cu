#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/last_rows/last_rows_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

__global__ void __launch_bounds__(256) take_last(Rows x, const std::int32_t* offsets, Rows out, int width) {
  await_inputs();
  const int row = blockIdx.x;
  const std::int32_t end = offsets[row + 1];
  const bool empty = end == offsets[row];
  const float* from = x.row(empty ? 0 : end - 1);
  for (int i = threadIdx.x; i < width; i += blockDim.x) out.row(row)[i] = empty ? 0.0f : from[i];
}

}  // namespace

Status last_rows_cuda(OpContext& context, const LastRowsArgs& args) {
  if (args.rows.num_rows == 0) return {};
  launch_kernel(context, take_last, args.rows.num_rows, 256, 0, rows_of(args.x), args.rows.offsets, rows_of(args.out),
                static_cast<int>(args.x.dim(1)));
  return cuda_launch_status("last_rows");
}

}  // namespace mstar
