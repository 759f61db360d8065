#include "mstar/ops/elementwise/elementwise.h"

#include "mstar/ops/elementwise/elementwise_kernels.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<AddArgs> kAdd[] = {
    {"cpu", Backend::cpu, nullptr, add_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, add_cuda},
#endif
};
constexpr Kernel<ActivateArgs> kActivate[] = {
    {"cpu", Backend::cpu, nullptr, activate_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, activate_cuda},
#endif
};
constexpr Kernel<SiluMulArgs> kSiluMul[] = {
    {"cpu", Backend::cpu, nullptr, silu_mul_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, silu_mul_cuda},
#endif
};
constexpr Kernel<SigmoidMulArgs> kSigmoidMul[] = {{"cpu", Backend::cpu, nullptr, sigmoid_mul_cpu}};
constexpr Kernel<SoftmaxArgs> kSoftmax[] = {
    {"cpu", Backend::cpu, nullptr, softmax_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, softmax_cuda},
#endif
};
}  // namespace

Status add(OpContext& context, const AddArgs& args) {
  MSTAR_OP_EXPECT("add", args.out.shape.rank() == 2 && args.b.shape.rank() == 2);
  const std::int64_t m = args.out.dim(0), n = args.out.dim(1);
  MSTAR_OP_EXPECT("add", is_rows_of(args.out, DType::f32, m, n));
  MSTAR_OP_EXPECT("add", is_rows_of(args.a, DType::f32, m, n));
  MSTAR_OP_EXPECT("add", is_rows_of(args.b, DType::f32, args.b.dim(0) == 1 ? 1 : m, n));
  return run_first_fit(context, args, kAdd, "add");
}

Status activate(OpContext& context, const ActivateArgs& args) {
  MSTAR_OP_EXPECT("activate", args.out.shape.rank() == 2);
  MSTAR_OP_EXPECT("activate", is_rows_of(args.out, DType::f32, args.out.dim(0), args.out.dim(1)));
  MSTAR_OP_EXPECT("activate", is_rows_of(args.x, DType::f32, args.out.dim(0), args.out.dim(1)));
  return run_first_fit(context, args, kActivate, "activate");
}

Status silu_mul(OpContext& context, const SiluMulArgs& args) {
  MSTAR_OP_EXPECT("silu_mul", args.out.shape.rank() == 2);
  const std::int64_t m = args.out.dim(0), n = args.out.dim(1);
  MSTAR_OP_EXPECT("silu_mul", is_rows_of(args.out, DType::f32, m, n));
  MSTAR_OP_EXPECT("silu_mul", is_rows_of(args.gate, DType::f32, m, n));
  MSTAR_OP_EXPECT("silu_mul", is_rows_of(args.up, DType::f32, m, n));
  return run_first_fit(context, args, kSiluMul, "silu_mul");
}

Status sigmoid_mul(OpContext& context, const SigmoidMulArgs& args) {
  MSTAR_OP_EXPECT("sigmoid_mul", args.out.shape.rank() == 2);
  const std::int64_t m = args.out.dim(0), n = args.out.dim(1);
  MSTAR_OP_EXPECT("sigmoid_mul", is_rows_of(args.out, DType::f32, m, n));
  MSTAR_OP_EXPECT("sigmoid_mul", is_rows_of(args.gate, DType::f32, m, n));
  MSTAR_OP_EXPECT("sigmoid_mul", is_rows_of(args.x, DType::f32, m, n));
  return run_first_fit(context, args, kSigmoidMul, "sigmoid_mul");
}

Status softmax(OpContext& context, const SoftmaxArgs& args) {
  MSTAR_OP_EXPECT("softmax", args.out.shape.rank() == 2);
  MSTAR_OP_EXPECT("softmax", is_rows_of(args.out, DType::f32, args.out.dim(0), args.out.dim(1)));
  MSTAR_OP_EXPECT("softmax", is_rows_of(args.x, DType::f32, args.out.dim(0), args.out.dim(1)));
  return run_first_fit(context, args, kSoftmax, "softmax");
}

}  // namespace mstar
