#include "mstar/ops/linear/linear.h"

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/linear/linear_blocks.h"
#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

bool has_block_weight(const OpContext&, const LinearArgs& args) { return args.weight->storage().is_blocks(); }
bool has_i8_weight(const OpContext&, const LinearArgs& args) { return args.weight->storage() == DType::i8; }
#ifdef MSTAR_CUDA
bool passes_norm(const OpContext&, const LinearArgs& args) {
  return args.squares.parts.pointer || args.passed.gains.pointer;
}
#endif

constexpr Kernel<LinearArgs> kKernels[] = {
    {"cpu_blocks", Backend::cpu, has_block_weight, linear_cpu_blocks},
    {"cpu_i8", Backend::cpu, has_i8_weight, linear_cpu_i8},
    {"cpu_float", Backend::cpu, nullptr, linear_cpu_float},
#ifdef MSTAR_CUDA
    {"cuda_stream", Backend::cuda, passes_norm, linear_cuda_stream},
    {"cuda_stream", Backend::cuda, linear_cuda_stream_fits, linear_cuda_stream},
    {"cuda_library", Backend::cuda, linear_cuda_library_fits, linear_cuda_library},
    {"cuda_stream", Backend::cuda, linear_cuda_can_stream, linear_cuda_stream},
    {"cuda_rows", Backend::cuda, nullptr, linear_cuda_rows},
#endif
};

Status check_passed_norm(const OpContext& context, const PassedNorm& passed, std::int64_t num_rows, std::int64_t n) {
  MSTAR_OP_EXPECT("linear", is_vector_of(passed.gains, DType::f32, n));
  MSTAR_OP_EXPECT("linear", is_rows_of(passed.rows, DType::bf16, num_rows, n));
  MSTAR_OP_EXPECT("linear", are_squares_of(context, passed.squares, num_rows));
  MSTAR_OP_EXPECT("linear", are_sums_beside(passed.sums, passed.squares));
  return {};
}

}  // namespace

Status linear(OpContext& context, const LinearArgs& args) {
  MSTAR_OP_EXPECT("linear", args.weight && *args.weight);
  const std::int64_t num_rows = args.x.shape.rank() == 2 ? args.x.dim(0) : -1;
  const std::int64_t n = args.weight->num_outputs();
  MSTAR_OP_EXPECT("linear", is_float_rows(context.backend(), args.x, num_rows, args.weight->num_inputs()));
  MSTAR_OP_EXPECT("linear", is_float_rows(context.backend(), args.out, num_rows, n));
  MSTAR_OP_EXPECT("linear", !args.bias.pointer || is_vector_of(args.bias, DType::f32, n));
  MSTAR_OP_EXPECT("linear", !args.residual.pointer || is_rows_of(args.residual, args.out.dtype, num_rows, n));
  MSTAR_OP_EXPECT("linear", is_lack_of_rows(context, args.squares, num_rows, n));
  if (args.passed.gains.pointer) MSTAR_TRY(check_passed_norm(context, args.passed, num_rows, n));
  if (num_rows == 0) return {};
  return run_first_fit(context, args, kKernels, "linear");
}

std::int64_t passed_norm_parts([[maybe_unused]] const OpContext& context, [[maybe_unused]] const LinearArgs& args,
                               [[maybe_unused]] const PassedNormReader& reader) {
#ifdef MSTAR_CUDA
  if (context.backend() == Backend::cuda) return linear_cuda_passed_norm_parts(context, args, reader);
#endif
  return 0;
}

std::size_t linear_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads) {
#ifdef MSTAR_CUDA
  if (weight.backend() == Backend::cuda) return linear_cuda_workspace_bytes();
#endif
  return linear_cpu_workspace_bytes(weight, num_rows, num_threads);
}

}  // namespace mstar
