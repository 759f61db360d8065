#include "mstar/ops/collectives/collectives_kernels.h"
#include "mstar/ops/cuda_kernel.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kColumns = 4 * kThreads;  // of a block

__global__ void __launch_bounds__(kThreads)
    join_columns(const float* parts, Rows out, int rows, int width, int columns) {
  await_inputs();
  const int row = blockIdx.y, first = blockIdx.x * kColumns;
  for (int column = first + threadIdx.x; column < min(columns, first + kColumns); column += kThreads) {
    const int rank = column / width;
    const std::int64_t from = (static_cast<std::int64_t>(rank) * rows + row) * width + (column - rank * width);
    out.row(row)[column] = parts[from];
  }
}

}  // namespace

Status join_columns_cuda(OpContext& context, const GatherColumnsArgs& args) {
  const int rows = static_cast<int>(args.out.dim(0)), columns = static_cast<int>(args.out.dim(1));
  if (rows == 0 || columns == 0) return {};
  const dim3 grid(static_cast<unsigned>((columns + kColumns - 1) / kColumns), static_cast<unsigned>(rows));
  launch_kernel(context, join_columns, grid, kThreads, 0, args.parts.data<float>(), rows_of(args.out), rows,
                static_cast<int>(args.parts.dim(2)), columns);
  return cuda_launch_status("gather_columns");
}

}  // namespace mstar
