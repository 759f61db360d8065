#include "mstar/ops/delta_mix/delta_mix.h"

#include <cmath>

#include "mstar/ops/causal_conv1d/causal_conv1d.h"
#include "mstar/ops/columns.h"
#include "mstar/ops/delta_mix/delta_mix_kernels.h"
#include "mstar/ops/delta_rule/delta_rule.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/rms_norm/rms_norm.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<DeltaMixArgs> kKernels[] = {
#ifdef MSTAR_CUDA
    {"cuda, one kernel", Backend::cuda, delta_mix_cuda_fits, delta_mix_cuda},
    {"cuda, in turn", Backend::cuda, nullptr, delta_mix_in_turn},
#endif
    {"cpu, in turn", Backend::cpu, nullptr, delta_mix_in_turn},
};

}  // namespace

Status delta_mix(OpContext& context, const DeltaMixArgs& args) {
  const TensorView &in = args.in, &rule = args.rule_state;
  MSTAR_OP_EXPECT("delta_mix", in.shape.rank() == 2 && rule.shape.rank() == 4 && args.conv_state.shape.rank() == 3);
  MSTAR_OP_EXPECT("delta_mix", args.key_heads > 0 && rule.dim(1) > 0 && rule.dim(1) % args.key_heads == 0);
  const DeltaMixColumns at = delta_mix_columns(args);
  const std::int64_t tokens = in.dim(0), heads = rule.dim(1), key_dim = rule.dim(2), value_dim = rule.dim(3);
  MSTAR_OP_EXPECT("delta_mix", is_activation_rows(context.backend(), in, {tokens, at.end}));
  MSTAR_OP_EXPECT("delta_mix", is_activation_heads(context.backend(), args.out, tokens, heads, value_dim));
  MSTAR_OP_EXPECT("delta_mix", in.dtype == args.out.dtype && in.dtype != DType::f16);
  MSTAR_OP_EXPECT("delta_mix", args.conv_weight.shape.rank() == 2);
  MSTAR_OP_EXPECT("delta_mix", is_rows_of(args.conv_weight, DType::f32, args.conv_weight.dim(0), at.z) &&
                                   args.conv_weight.contiguous());
  MSTAR_OP_EXPECT("delta_mix", args.conv_state.dtype == DType::f32 && args.conv_state.dim(2) == at.z);
  MSTAR_OP_EXPECT("delta_mix", args.conv_state.dim(1) == args.conv_weight.dim(0) - 1);
  MSTAR_OP_EXPECT("delta_mix", args.conv_state.stride(2) == 1 && args.conv_state.stride(1) == at.z);
  MSTAR_OP_EXPECT("delta_mix", rule.dtype == DType::f32 || rule.dtype == DType::bf16);
  MSTAR_OP_EXPECT("delta_mix", rule.stride(3) == 1 && rule.stride(2) == value_dim);
  MSTAR_OP_EXPECT("delta_mix", rule.stride(1) == key_dim * value_dim);
  MSTAR_OP_EXPECT("delta_mix", is_vector_of(args.rate, DType::f32, heads));
  MSTAR_OP_EXPECT("delta_mix", is_vector_of(args.dt_bias, DType::f32, heads));
  MSTAR_OP_EXPECT("delta_mix", is_vector_of(args.norm_weight, DType::f32, value_dim));
  MSTAR_OP_EXPECT("delta_mix", args.rows.num_rows == 0 || (args.rows.offsets && args.slots && args.positions));
  MSTAR_OP_EXPECT("delta_mix", args.rows.num_tokens <= tokens);
  MSTAR_OP_EXPECT("delta_mix", (args.kept.tokens == nullptr) == (args.kept.slots == nullptr));
  return run_first_fit(context, args, kKernels, "delta_mix");
}

Status delta_mix_in_turn(OpContext& context, const DeltaMixArgs& args) {
  const auto mark = context.arena.mark();
  const DeltaMixColumns at = delta_mix_columns(args);
  const std::int64_t tokens = args.in.dim(0), heads = args.rule_state.dim(1);
  const std::int64_t key_dim = args.rule_state.dim(2), value_dim = args.rule_state.dim(3);
  const TensorView conv = context.temporary(args.in.dtype, {tokens, at.z});
  const TensorView decay = context.temporary(DType::f32, {tokens, heads});
  const TensorView beta = context.temporary(DType::f32, {tokens, heads});
  MSTAR_TRY(causal_conv1d(context, {.x = columns(args.in, 0, at.z),
                                    .rows = args.rows,
                                    .positions = args.positions,
                                    .weight = args.conv_weight,
                                    .activation = Activation::silu,
                                    .state = args.conv_state,
                                    .slots = args.slots,
                                    .read_slots = args.read_slots,
                                    .kept = args.kept,
                                    .out = conv}));
  MSTAR_TRY(delta_gates(context, {.a = columns(args.in, at.a, heads),
                                  .b = columns(args.in, at.b, heads),
                                  .rate = args.rate,
                                  .dt_bias = args.dt_bias,
                                  .decay = decay,
                                  .beta = beta,
                                  .beside_previous = args.rows.num_tokens > 0 && args.rows.num_rows > 0}));
  MSTAR_TRY(delta_rule(context, {.q = head_columns(conv, 0, args.key_heads, key_dim),
                                 .k = head_columns(conv, at.k, args.key_heads, key_dim),
                                 .v = head_columns(conv, at.v, heads, value_dim),
                                 .decay = decay,
                                 .beta = beta,
                                 .rows = args.rows,
                                 .positions = args.positions,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(key_dim)),
                                 .interleaved_heads = args.interleaved_heads,
                                 .state = args.rule_state,
                                 .slots = args.slots,
                                 .read_slots = args.read_slots,
                                 .kept = args.kept,
                                 .out = args.out}));
  MSTAR_TRY(rms_norm(context, {.x = args.out,
                               .weight = args.norm_weight,
                               .epsilon = args.norm_epsilon,
                               .out = args.out,
                               .gate = head_columns(args.in, at.z, heads, value_dim)}));
  context.arena.rewind(mark);
  return ok_status();
}

std::size_t delta_mix_workspace_bytes(const DeltaMixWorkspace& call) {
  constexpr std::size_t kParts = 3, kAlignment = 256;
  const auto numbers = static_cast<std::size_t>(call.tokens * (call.conv_width + 2 * call.heads));
  return numbers * sizeof(float) + kParts * kAlignment +
         delta_rule_workspace_bytes({.backend = call.backend,
                                     .tokens = call.tokens,
                                     .heads = call.heads,
                                     .key_dim = call.key_dim,
                                     .num_threads = call.num_threads});
}

}  // namespace mstar
