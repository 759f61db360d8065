#include "mstar/ops/causal_conv1d/causal_conv1d.h"

#include "mstar/ops/causal_conv1d/causal_conv1d_kernels.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<CausalConv1dArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, causal_conv1d_cpu},
#ifdef MSTAR_CUDA
    {"cuda, four or eight channels a thread", Backend::cuda, causal_conv1d_cuda_fits, causal_conv1d_cuda},
#endif
};
}  // namespace

Status causal_conv1d(OpContext& context, const CausalConv1dArgs& args) {
  MSTAR_OP_EXPECT("causal_conv1d", args.x.shape.rank() == 2 && args.weight.shape.rank() == 2);
  const std::int64_t tokens = args.x.dim(0), channels = args.x.dim(1), taps = args.weight.dim(0);
  MSTAR_OP_EXPECT("causal_conv1d", taps >= 2 && taps <= kMaxConvTaps && channels > 0);
  MSTAR_OP_EXPECT("causal_conv1d", is_activation_rows(context.backend(), args.x, {tokens, channels}));
  MSTAR_OP_EXPECT("causal_conv1d", is_activation_rows(context.backend(), args.out, {tokens, channels}));
  MSTAR_OP_EXPECT("causal_conv1d", tokens == 0 || args.x.pointer != args.out.pointer);
  MSTAR_OP_EXPECT("causal_conv1d", is_rows_of(args.weight, DType::f32, taps, channels) && args.weight.contiguous());
  MSTAR_OP_EXPECT("causal_conv1d", args.state.shape.rank() == 3 && args.state.dtype == DType::f32);
  MSTAR_OP_EXPECT("causal_conv1d", args.state.dim(1) == taps - 1 && args.state.dim(2) == channels);
  MSTAR_OP_EXPECT("causal_conv1d", args.state.stride(1) == channels && args.state.stride(2) == 1);
  MSTAR_OP_EXPECT("causal_conv1d", args.rows.num_rows == 0 || (args.rows.offsets && args.slots && args.positions));
  MSTAR_OP_EXPECT("causal_conv1d", args.rows.num_tokens <= tokens);
  MSTAR_OP_EXPECT("causal_conv1d", (args.kept.tokens == nullptr) == (args.kept.slots == nullptr));
  return run_first_fit(context, args, kKernels, "causal_conv1d");
}

}  // namespace mstar
