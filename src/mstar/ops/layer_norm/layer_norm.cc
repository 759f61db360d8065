#include "mstar/ops/layer_norm/layer_norm.h"

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/layer_norm/layer_norm_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<LayerNormArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, layer_norm_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, layer_norm_cuda},
#endif
};
}  // namespace

Status layer_norm(OpContext& context, const LayerNormArgs& args) {
  MSTAR_OP_EXPECT("layer_norm", args.x.shape.rank() == 2 && args.x.dim(1) > 0);
  const std::int64_t m = args.x.dim(0), d = args.x.dim(1);
  MSTAR_OP_EXPECT("layer_norm", is_rows_of(args.x, DType::f32, m, d));
  const bool narrows = context.backend() == Backend::cuda && args.out.dtype == DType::bf16;
  MSTAR_OP_EXPECT("layer_norm", is_rows_of(args.out, narrows ? DType::bf16 : DType::f32, m, d));
  MSTAR_OP_EXPECT("layer_norm", is_vector_of(args.weight, DType::f32, d));
  MSTAR_OP_EXPECT("layer_norm", !args.bias.pointer || is_vector_of(args.bias, DType::f32, d));
  return run_first_fit(context, args, kKernels, "layer_norm");
}

}  // namespace mstar
