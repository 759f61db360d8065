#include "mstar/ops/last_rows/last_rows.h"

#include <algorithm>

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/last_rows/last_rows_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<LastRowsArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, last_rows_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, last_rows_cuda},
#endif
};

}  // namespace

Status last_rows(OpContext& context, const LastRowsArgs& args) {
  MSTAR_OP_EXPECT("last_rows", args.x.shape.rank() == 2 && args.rows.num_tokens <= args.x.dim(0));
  MSTAR_OP_EXPECT("last_rows", is_rows_of(args.x, DType::f32, args.x.dim(0), args.x.dim(1)));
  MSTAR_OP_EXPECT("last_rows", is_rows_of(args.out, DType::f32, args.rows.num_rows, args.x.dim(1)));
  MSTAR_OP_EXPECT("last_rows", args.rows.num_rows == 0 || args.rows.offsets);
  return run_first_fit(context, args, kKernels, "last_rows");
}

Status last_rows_cpu(OpContext&, const LastRowsArgs& args) {
  const std::int64_t width = args.x.dim(1);
  for (int r = 0; r < args.rows.num_rows; ++r) {
    float* const to = args.out.data<float>() + r * args.out.stride(0);
    const std::int32_t end = args.rows.offsets[r + 1];
    if (end == args.rows.offsets[r]) {
      std::fill_n(to, width, 0.0f);
    } else {
      std::copy_n(args.x.data<float>() + (end - 1) * args.x.stride(0), width, to);
    }
  }
  return {};
}

}  // namespace mstar
