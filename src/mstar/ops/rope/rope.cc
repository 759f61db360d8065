#include "mstar/ops/rope/rope.h"

#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/rope/rope_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<RopeArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, rope_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, rope_cuda},
#endif
};
}  // namespace

Status rope(OpContext& context, const RopeArgs& args) {
  MSTAR_OP_EXPECT("rope", args.x.shape.rank() == 3 && args.inverse_frequencies.shape.rank() == 1);
  MSTAR_OP_EXPECT("rope", is_activation_rows(context.backend(), args.x, args.x.shape));
  MSTAR_OP_EXPECT("rope", is_vector_of(args.positions, DType::i32, args.x.dim(0)));
  MSTAR_OP_EXPECT("rope", is_vector_of(args.inverse_frequencies, DType::f32, args.inverse_frequencies.dim(0)));
  MSTAR_OP_EXPECT("rope", 2 * args.inverse_frequencies.dim(0) <= args.x.dim(2));
  return run_first_fit(context, args, kKernels, "rope");
}

}  // namespace mstar
