#include "mstar/ops/delta_rule/delta_rule.h"

#include "mstar/ops/delta_rule/delta_rule_kernels.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<DeltaGatesArgs> kGates[] = {
    {"cpu", Backend::cpu, nullptr, delta_gates_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, delta_gates_cuda},
#endif
};
constexpr Kernel<DeltaRuleArgs> kRule[] = {
    {"cpu", Backend::cpu, nullptr, delta_rule_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, delta_rule_cuda_fits, delta_rule_cuda},
#endif
};

Status check_state(const DeltaRuleArgs& args) {
  const std::int64_t heads = args.v.dim(1), key_dim = args.k.dim(2), value_dim = args.v.dim(2);
  const TensorView& state = args.state;
  MSTAR_OP_EXPECT("delta_rule", state.shape.rank() == 4 && (state.dtype == DType::f32 || state.dtype == DType::bf16));
  MSTAR_OP_EXPECT("delta_rule", state.dim(1) == heads && state.dim(2) == key_dim && state.dim(3) == value_dim);
  MSTAR_OP_EXPECT("delta_rule", state.stride(3) == 1 && state.stride(2) == value_dim);
  MSTAR_OP_EXPECT("delta_rule", state.stride(1) == key_dim * value_dim);
  return {};
}

}  // namespace

Status delta_gates(OpContext& context, const DeltaGatesArgs& args) {
  MSTAR_OP_EXPECT("delta_gates", args.a.shape.rank() == 2);
  const std::int64_t tokens = args.a.dim(0), heads = args.a.dim(1);
  MSTAR_OP_EXPECT("delta_gates", is_activation_rows(context.backend(), args.a, {tokens, heads}));
  MSTAR_OP_EXPECT("delta_gates", is_activation_rows(context.backend(), args.b, {tokens, heads}));
  MSTAR_OP_EXPECT("delta_gates", args.a.dtype == args.b.dtype);
  MSTAR_OP_EXPECT("delta_gates", is_vector_of(args.rate, DType::f32, heads));
  MSTAR_OP_EXPECT("delta_gates", is_vector_of(args.dt_bias, DType::f32, heads));
  MSTAR_OP_EXPECT("delta_gates", is_rows_of(args.decay, DType::f32, tokens, heads) && args.decay.contiguous());
  MSTAR_OP_EXPECT("delta_gates", is_rows_of(args.beta, DType::f32, tokens, heads) && args.beta.contiguous());
  return run_first_fit(context, args, kGates, "delta_gates");
}

Status delta_rule(OpContext& context, const DeltaRuleArgs& args) {
  MSTAR_OP_EXPECT("delta_rule", args.k.shape.rank() == 3 && args.v.shape.rank() == 3);
  const std::int64_t tokens = args.v.dim(0), key_heads = args.k.dim(1), heads = args.v.dim(1);
  MSTAR_OP_EXPECT("delta_rule", key_heads > 0 && heads > 0 && heads % key_heads == 0);
  MSTAR_OP_EXPECT("delta_rule", args.k.dim(2) > 0 && args.v.dim(2) > 0 && args.v.dim(2) % 16 == 0);
  const Backend backend = context.backend();
  MSTAR_OP_EXPECT("delta_rule", is_activation_heads(backend, args.q, tokens, key_heads, args.k.dim(2)));
  MSTAR_OP_EXPECT("delta_rule", is_activation_heads(backend, args.k, tokens, key_heads, args.k.dim(2)));
  MSTAR_OP_EXPECT("delta_rule", is_activation_heads(backend, args.v, tokens, heads, args.v.dim(2)));
  MSTAR_OP_EXPECT("delta_rule", is_activation_heads(backend, args.out, tokens, heads, args.v.dim(2)));
  MSTAR_OP_EXPECT("delta_rule", args.q.dtype == args.k.dtype && args.q.dtype == args.v.dtype);
  MSTAR_OP_EXPECT("delta_rule", args.q.dtype == args.out.dtype);
  MSTAR_OP_EXPECT("delta_rule", is_rows_of(args.decay, DType::f32, tokens, heads) && args.decay.contiguous());
  MSTAR_OP_EXPECT("delta_rule", is_rows_of(args.beta, DType::f32, tokens, heads) && args.beta.contiguous());
  MSTAR_OP_EXPECT("delta_rule", args.rows.num_rows == 0 || (args.rows.offsets && args.slots && args.positions));
  MSTAR_OP_EXPECT("delta_rule", args.rows.num_tokens <= tokens);
  MSTAR_OP_EXPECT("delta_rule", (args.kept.tokens == nullptr) == (args.kept.slots == nullptr));
  MSTAR_TRY(check_state(args));
  return run_first_fit(context, args, kRule, "delta_rule");
}

std::size_t delta_rule_workspace_bytes(const DeltaRuleWorkspace& call) {
  if (call.backend == Backend::cpu) return delta_rule_cpu_workspace_bytes(call.key_dim, call.num_threads);
  constexpr std::size_t kParts = 5, kAlignment = 256;
  return static_cast<std::size_t>(call.tokens * call.heads * kDeltaChunkBytes) + kParts * kAlignment;
}

}  // namespace mstar
