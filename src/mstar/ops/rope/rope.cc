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

bool are_rotary_positions(const TensorView& positions, const TensorView& pair_axes, std::int64_t tokens,
                          std::int64_t pairs) {
  if (!pair_axes.pointer) return is_vector_of(positions, DType::i32, tokens);
  return positions.shape.rank() == 2 && positions.dim(0) > 0 &&
         is_rows_of(positions, DType::i32, positions.dim(0), tokens) && is_vector_of(pair_axes, DType::i32, pairs);
}

Status rope(OpContext& context, const RopeArgs& args) {
  MSTAR_OP_EXPECT("rope", args.x.shape.rank() == 3 && args.inverse_frequencies.shape.rank() == 1);
  MSTAR_OP_EXPECT("rope", is_activation_rows(context.backend(), args.x, args.x.shape));
  const std::int64_t pairs = args.inverse_frequencies.dim(0);
  MSTAR_OP_EXPECT("rope", is_vector_of(args.inverse_frequencies, DType::f32, pairs));
  MSTAR_OP_EXPECT("rope", are_rotary_positions(args.positions, args.pair_axes, args.x.dim(0), pairs));
  MSTAR_OP_EXPECT("rope", 2 * pairs <= args.x.dim(2));
  return run_first_fit(context, args, kKernels, "rope");
}

}  // namespace mstar
