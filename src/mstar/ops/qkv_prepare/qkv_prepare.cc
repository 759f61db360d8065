#include "mstar/ops/qkv_prepare/qkv_prepare.h"

#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/qkv_prepare/qkv_prepare_kernels.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/ops/rope/rope.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<QkvPrepareArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, qkv_prepare_in_parts},
#ifdef MSTAR_CUDA
    {"cuda, a warp a head", Backend::cuda, qkv_prepare_cuda_fits, qkv_prepare_cuda},
    {"cuda, in parts", Backend::cuda, nullptr, qkv_prepare_in_parts},
#endif
};

Status rotate(OpContext& context, const QkvPrepareArgs& args, const TensorView& x) {
  return rope(context, {.x = x,
                        .positions = args.positions,
                        .inverse_frequencies = args.inverse_frequencies,
                        .interleaved = args.interleaved,
                        .pair_axes = args.pair_axes});
}

Status normalise(OpContext& context, const QkvPrepareArgs& args, const TensorView& x, const TensorView& weight,
                 const TensorView& out) {
  return rms_norm(context,
                  {.x = x, .weight = weight, .epsilon = args.epsilon, .weight_offset = args.weight_offset, .out = out});
}

}  // namespace

Status qkv_prepare_in_parts(OpContext& context, const QkvPrepareArgs& args) {
  if (args.q_weight.pointer) {
    MSTAR_TRY(normalise(context, args, args.q, args.q_weight, args.q_out));
    MSTAR_TRY(normalise(context, args, args.k, args.k_weight, args.k));
  }
  MSTAR_TRY(rotate(context, args, args.q_out));
  MSTAR_TRY(rotate(context, args, args.k));
  return kv_append(context, {.keys = args.k, .values = args.v, .rows = args.rows, .kv = args.kv});
}

Status qkv_prepare(OpContext& context, const QkvPrepareArgs& args) {
  const Backend backend = context.backend();
  MSTAR_OP_EXPECT("qkv_prepare", args.q.shape.rank() == 3 && args.k.shape.rank() == 3);
  const std::int64_t tokens = args.q.dim(0), head_dim = args.q.dim(2), kv_heads = args.k.dim(1);
  MSTAR_OP_EXPECT("qkv_prepare", tokens == args.rows.num_tokens && is_activation_rows(backend, args.q, args.q.shape));
  MSTAR_OP_EXPECT("qkv_prepare", is_activation_rows(backend, args.q_out, args.q.shape));
  MSTAR_OP_EXPECT("qkv_prepare", is_activation_heads(backend, args.k, tokens, kv_heads, head_dim));
  MSTAR_OP_EXPECT("qkv_prepare", is_activation_heads(backend, args.v, tokens, kv_heads, head_dim));
  MSTAR_OP_EXPECT("qkv_prepare", args.q_out.dtype == args.q.dtype && args.k.dtype == args.q.dtype);
  MSTAR_OP_EXPECT("qkv_prepare", args.v.dtype == args.q.dtype);
  MSTAR_OP_EXPECT("qkv_prepare", (args.q_weight.pointer != nullptr) == (args.k_weight.pointer != nullptr));
  if (args.q_weight.pointer) {
    MSTAR_OP_EXPECT("qkv_prepare", is_vector_of(args.q_weight, DType::f32, head_dim));
    MSTAR_OP_EXPECT("qkv_prepare", is_vector_of(args.k_weight, DType::f32, head_dim));
  } else {
    MSTAR_OP_EXPECT("qkv_prepare", args.q_out.pointer == args.q.pointer && args.q_out.strides == args.q.strides);
  }
  MSTAR_OP_EXPECT("qkv_prepare", args.inverse_frequencies.shape.rank() == 1);
  const std::int64_t pairs = args.inverse_frequencies.dim(0);
  MSTAR_OP_EXPECT("qkv_prepare", is_vector_of(args.inverse_frequencies, DType::f32, pairs) && 2 * pairs <= head_dim);
  MSTAR_OP_EXPECT("qkv_prepare", are_rotary_positions(args.positions, args.pair_axes, tokens, pairs));
  const TensorView& keys = args.kv.keys;
  MSTAR_OP_EXPECT("qkv_prepare", keys.shape.rank() == 4 && keys.dim(2) == kv_heads && keys.dim(3) == head_dim);
  MSTAR_OP_EXPECT("qkv_prepare", keys.shape == args.kv.values.shape && keys.dtype == args.kv.values.dtype);
  MSTAR_OP_EXPECT("qkv_prepare", keys.contiguous() && args.kv.values.contiguous());
  MSTAR_OP_EXPECT("qkv_prepare", args.kv.page_tokens > 0 && keys.dim(1) == args.kv.page_tokens);
  MSTAR_OP_EXPECT("qkv_prepare", args.kv.lengths && args.kv.page_table);
  return run_first_fit(context, args, kKernels, "qkv_prepare");
}

}  // namespace mstar
