#include "mstar/ops/linear/gated_linear.h"

#include "mstar/ops/columns.h"
#include "mstar/ops/elementwise/elementwise.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

Status in_two_steps(OpContext& context, const GatedLinearArgs& args) {
  const std::size_t mark = context.arena.mark();
  const std::int64_t f = args.out.dim(1);
  const TensorView both = context.temporary(args.out.dtype, {args.x.dim(0), 2 * f});
  LinearArgs product;
  product.x = args.x;
  product.weight = args.weight;
  product.out = both;
  MSTAR_TRY(linear(context, product));
  MSTAR_TRY(silu_mul(context, {.gate = columns(both, 0, f), .up = columns(both, f, f), .out = args.out}));
  context.arena.rewind(mark);
  return ok_status();
}

#ifdef MSTAR_CUDA
bool has_squares(const OpContext&, const GatedLinearArgs& args) { return args.squares.parts.pointer; }
#endif

constexpr Kernel<GatedLinearArgs> kKernels[] = {
#ifdef MSTAR_CUDA
    {"cuda_stream", Backend::cuda, has_squares, gated_linear_cuda_stream},
    {"cuda_stream", Backend::cuda, gated_linear_cuda_stream_fits, gated_linear_cuda_stream},
    {"cuda_two_steps", Backend::cuda, nullptr, in_two_steps},
#endif
    {"cpu_two_steps", Backend::cpu, nullptr, in_two_steps},
};

}  // namespace

Status gated_linear(OpContext& context, const GatedLinearArgs& args) {
  MSTAR_OP_EXPECT("gated_linear", args.weight && *args.weight && args.weight->num_outputs() % 2 == 0);
  MSTAR_OP_EXPECT("gated_linear", args.x.shape.rank() == 2 && args.x.dim(1) == args.weight->num_inputs());
  MSTAR_OP_EXPECT("gated_linear", is_float_rows(context.backend(), args.x, args.x.dim(0), args.x.dim(1)));
  MSTAR_OP_EXPECT("gated_linear",
                  is_float_rows(context.backend(), args.out, args.x.dim(0), args.weight->num_outputs() / 2));
  MSTAR_OP_EXPECT("gated_linear", args.out.dtype != DType::f16);
  MSTAR_OP_EXPECT("gated_linear", !args.squares.sums.pointer && is_lack_of_rows(context, args.squares, args.x.dim(0),
                                                                                args.weight->num_outputs()));
  if (args.x.dim(0) == 0) return {};
  return run_first_fit(context, args, kKernels, "gated_linear");
}

std::size_t gated_linear_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads) {
  return static_cast<std::size_t>(num_rows * weight.num_outputs()) * sizeof(float) + 256 +
         linear_workspace_bytes(weight, num_rows, num_threads);
}

}  // namespace mstar
