#include "mstar/ops/elementwise/elementwise.h"

#include "mstar/ops/elementwise/elementwise_kernels.h"
#include "mstar/ops/head_rows.h"
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
constexpr Kernel<SigmoidMulArgs> kSigmoidMul[] = {
    {"cpu", Backend::cpu, nullptr, sigmoid_mul_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, sigmoid_mul_cuda},
#endif
};
constexpr Kernel<SoftmaxArgs> kSoftmax[] = {
    {"cpu", Backend::cpu, nullptr, softmax_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, softmax_cuda},
#endif
};

// A view of an op whose result is `out`.
bool fits_out(const OpContext& context, const TensorView& view, const TensorView& out) {
  return view.dtype == out.dtype && is_activation_rows(context.backend(), view, out.shape);
}

}  // namespace

Status add(OpContext& context, const AddArgs& args) {
  MSTAR_OP_EXPECT("add", args.out.shape.rank() == 2 && args.b.shape.rank() == 2);
  MSTAR_OP_EXPECT("add", fits_out(context, args.out, args.out));
  MSTAR_OP_EXPECT("add", fits_out(context, args.a, args.out));
  TensorView repeated = args.b;
  if (args.b.dim(0) == 1) repeated.shape[0] = args.out.dim(0);
  MSTAR_OP_EXPECT("add", fits_out(context, repeated, args.out));
  return run_first_fit(context, args, kAdd, "add");
}

Status activate(OpContext& context, const ActivateArgs& args) {
  MSTAR_OP_EXPECT("activate", args.out.shape.rank() == 2);
  MSTAR_OP_EXPECT("activate", fits_out(context, args.out, args.out));
  MSTAR_OP_EXPECT("activate", fits_out(context, args.x, args.out));
  MSTAR_OP_EXPECT("activate", !args.bias.pointer || is_vector_of(args.bias, DType::f32, args.out.dim(1)));
  return run_first_fit(context, args, kActivate, "activate");
}

Status silu_mul(OpContext& context, const SiluMulArgs& args) {
  MSTAR_OP_EXPECT("silu_mul", fits_out(context, args.out, args.out));
  MSTAR_OP_EXPECT("silu_mul", fits_out(context, args.gate, args.out));
  MSTAR_OP_EXPECT("silu_mul", fits_out(context, args.up, args.out));
  return run_first_fit(context, args, kSiluMul, "silu_mul");
}

Status sigmoid_mul(OpContext& context, const SigmoidMulArgs& args) {
  MSTAR_OP_EXPECT("sigmoid_mul", fits_out(context, args.out, args.out));
  MSTAR_OP_EXPECT("sigmoid_mul", fits_out(context, args.gate, args.out));
  MSTAR_OP_EXPECT("sigmoid_mul", fits_out(context, args.x, args.out));
  return run_first_fit(context, args, kSigmoidMul, "sigmoid_mul");
}

Status softmax(OpContext& context, const SoftmaxArgs& args) {
  MSTAR_OP_EXPECT("softmax", args.out.shape.rank() == 2);
  MSTAR_OP_EXPECT("softmax", is_rows_of(args.out, DType::f32, args.out.dim(0), args.out.dim(1)));
  MSTAR_OP_EXPECT("softmax", is_rows_of(args.x, DType::f32, args.out.dim(0), args.out.dim(1)));
  return run_first_fit(context, args, kSoftmax, "softmax");
}

}  // namespace mstar
