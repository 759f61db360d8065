#include "mstar/ops/conv1d/conv1d.h"

#include "mstar/ops/conv1d/conv1d_kernels.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<Conv1dArgs> kKernels[] = {
    {"cpu_linear", Backend::cpu, nullptr, conv1d_cpu},
#ifdef MSTAR_CUDA
    {"cuda_linear", Backend::cuda, nullptr, conv1d_cuda},
#endif
};
}  // namespace

Status conv1d(OpContext& context, const Conv1dArgs& args) {
  MSTAR_OP_EXPECT("conv1d", args.weight && *args.weight && args.weight->num_inputs() % 3 == 0);
  MSTAR_OP_EXPECT("conv1d", args.x.shape.rank() == 2 && (args.stride == 1 || args.stride == 2));
  const std::int64_t channels = args.weight->num_inputs() / 3;
  const std::int64_t frames = args.x.dim(args.channels_first ? 1 : 0);
  const std::int64_t out_frames = frames > 0 ? (frames - 1) / args.stride + 1 : 0;
  const std::int64_t outputs = args.weight->num_outputs();
  const Backend backend = context.backend();
  MSTAR_OP_EXPECT("conv1d", is_activation_dtype(backend, args.x.dtype) && is_activation_dtype(backend, args.out.dtype));
  MSTAR_OP_EXPECT("conv1d", args.channels_first
                                ? is_rows_of(args.x, args.x.dtype, channels, frames)
                                : is_rows_of(args.x, args.x.dtype, frames, channels) && args.x.contiguous());
  MSTAR_OP_EXPECT("conv1d", is_rows_of(args.out, args.out.dtype, out_frames, outputs));
  MSTAR_OP_EXPECT("conv1d", !args.bias.pointer || is_vector_of(args.bias, DType::f32, outputs));
  MSTAR_OP_EXPECT("conv1d", !args.residual.pointer || is_rows_of(args.residual, args.out.dtype, out_frames, outputs));
  if (out_frames == 0) return {};
  return run_first_fit(context, args, kKernels, "conv1d");
}

}  // namespace mstar
