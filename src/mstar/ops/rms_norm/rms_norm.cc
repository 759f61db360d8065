#include "mstar/ops/rms_norm/rms_norm.h"

#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/rms_norm/rms_norm_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<RmsNormArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, rms_norm_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, rms_norm_cuda},
#endif
};
}  // namespace

Status rms_norm(OpContext& context, const RmsNormArgs& args) {
  MSTAR_OP_EXPECT("rms_norm", args.x.shape.rank() >= 2);
  const std::int64_t d = head_row_width(args.x);
  MSTAR_OP_EXPECT("rms_norm", d > 0 && is_activation_rows(context.backend(), args.x, args.x.shape));
  MSTAR_OP_EXPECT("rms_norm", is_activation_rows(context.backend(), args.out, args.x.shape));
  MSTAR_OP_EXPECT("rms_norm", is_vector_of(args.weight, DType::f32, d));
  if (args.gate.pointer) {
    MSTAR_OP_EXPECT("rms_norm", is_activation_rows(context.backend(), args.gate, args.x.shape));
    MSTAR_OP_EXPECT("rms_norm", args.gate.dtype == args.x.dtype && args.out.dtype == args.x.dtype);
  }
  return run_first_fit(context, args, kKernels, "rms_norm");
}

}  // namespace mstar
