#include "mstar/ops/linear/fold_norm.h"

#include <vector>

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<FoldNormArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, fold_norm_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, fold_norm_cuda},
#endif
};

}  // namespace

Status fold_norm_cpu(OpContext& context, const FoldNormArgs& args) {
  const LinearWeight& weight = *args.weight;
  const std::int64_t k = weight.num_inputs();
  const float* const gains = args.gains.data<float>();
  const float* const shifts = args.shifts.data<float>();
  context.parallel_for_rows(weight.num_outputs(), k, [&](std::int64_t output) {
    std::vector<float> row(static_cast<std::size_t>(k));
    weight.read_row(output, row.data());
    double gained = 0, shifted = args.bias.pointer ? args.bias.data<float>()[output] : 0.0;
    for (std::int64_t i = 0; i < k; ++i) {
      const double w = row[static_cast<std::size_t>(i)];
      gained += w * gains[i];
      shifted += w * shifts[i];
    }
    args.weighted_gains.data<float>()[output] = static_cast<float>(gained);
    args.folded_bias.data<float>()[output] = static_cast<float>(shifted);
  });
  return {};
}

Status fold_norm(OpContext& context, const FoldNormArgs& args) {
  MSTAR_OP_EXPECT("fold_norm", args.weight && *args.weight);
  const std::int64_t n = args.weight->num_outputs(), k = args.weight->num_inputs();
  MSTAR_OP_EXPECT("fold_norm", is_vector_of(args.gains, DType::f32, k) && is_vector_of(args.shifts, DType::f32, k));
  MSTAR_OP_EXPECT("fold_norm", !args.bias.pointer || is_vector_of(args.bias, DType::f32, n));
  MSTAR_OP_EXPECT("fold_norm", is_vector_of(args.weighted_gains, DType::f32, n));
  MSTAR_OP_EXPECT("fold_norm", is_vector_of(args.folded_bias, DType::f32, n));
  return run_first_fit(context, args, kKernels, "fold_norm");
}

}  // namespace mstar
