#include "mstar/ops/attention/attention.h"

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/kv_layout.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/kv_append/kv_append.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<DenseAttentionArgs> kDense[] = {
    {"cpu", Backend::cpu, nullptr, attention_dense_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, attention_dense_cuda_fits, attention_dense_cuda},
#endif
};
constexpr Kernel<PagedAttentionArgs> kPaged[] = {
    {"cpu", Backend::cpu, nullptr, attention_paged_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, attention_paged_cuda_fits, attention_paged_cuda},
#endif
};
constexpr Kernel<SlotAttentionArgs> kSlots[] = {
    {"cpu", Backend::cpu, nullptr, attention_slots_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, attention_slots_cuda_fits, attention_slots_cuda},
#endif
};

// [tokens, heads, head_dim] of f32, on CUDA also of bf16.
bool are_heads(const OpContext& context, const TensorView& view, std::int64_t num_tokens, std::int64_t num_heads,
               std::int64_t head_dim) {
  TensorView as_f32 = view;
  if (context.backend() == Backend::cuda && view.dtype == DType::bf16) as_f32.dtype = DType::f32;
  return is_token_heads(as_f32, num_tokens, num_heads, head_dim);
}

Status check_queries(const OpContext& context, const TensorView& q, const TensorView& out, const RaggedView& rows,
                     float scale, std::int64_t kv_heads, std::int64_t head_dim) {
  MSTAR_OP_EXPECT("attention", scale > 0);
  MSTAR_OP_EXPECT("attention", q.shape.rank() == 3 && q.dim(1) > 0 && kv_heads > 0 && q.dim(1) % kv_heads == 0);
  MSTAR_OP_EXPECT("attention", are_heads(context, q, rows.num_tokens, q.dim(1), head_dim));
  MSTAR_OP_EXPECT("attention", are_heads(context, out, rows.num_tokens, q.dim(1), head_dim));
  MSTAR_OP_EXPECT("attention", rows.num_rows == 0 || rows.offsets != nullptr);
  return {};
}

bool is_kv_pair(const TensorView& keys, const TensorView& values) {
  return keys.shape.rank() == 4 && keys.shape == values.shape && keys.dtype == values.dtype &&
         is_kv_dtype(keys.dtype) && keys.contiguous() && values.contiguous() && keys.dim(3) % 16 == 0;
}

}  // namespace

Status attention_dense(OpContext& context, const DenseAttentionArgs& args) {
  MSTAR_OP_EXPECT("attention", args.k.shape.rank() == 3 && args.v.shape.rank() == 3);
  MSTAR_TRY(check_queries(context, args.q, args.out, args.rows, args.scale, args.k.dim(1), args.k.dim(2)));
  MSTAR_OP_EXPECT("attention", are_heads(context, args.k, args.rows.num_tokens, args.k.dim(1), args.k.dim(2)));
  MSTAR_OP_EXPECT("attention", are_heads(context, args.v, args.rows.num_tokens, args.k.dim(1), args.k.dim(2)));
  if (args.q_bias.pointer || args.v_bias.pointer) {
    const std::int64_t width = args.q.dim(1) * args.q.dim(2);
    MSTAR_OP_EXPECT("attention",
                    is_vector_of(args.q_bias, DType::f32, width) && is_vector_of(args.v_bias, DType::f32, width));
    MSTAR_OP_EXPECT("attention", context.backend() == Backend::cuda);
  }
  return run_first_fit(context, args, kDense, "attention_dense");
}

Status attention_paged(OpContext& context, const PagedAttentionArgs& args) {
  MSTAR_OP_EXPECT("attention", is_kv_pair(args.kv.keys, args.kv.values));
  MSTAR_OP_EXPECT("attention", args.kv.page_tokens % kKeyUnit == 0 && args.kv.keys.dim(1) == args.kv.page_tokens);
  MSTAR_OP_EXPECT("attention", args.kv.lengths && args.kv.page_table);
  MSTAR_TRY(check_queries(context, args.q, args.out, args.rows, args.scale, args.kv.keys.dim(2), args.kv.keys.dim(3)));
  if (args.gate.pointer)
    MSTAR_OP_EXPECT("attention",
                    args.gate.shape == args.q.shape && args.gate.dtype == args.q.dtype && args.gate.stride(2) == 1);
  if (!args.new_keys.pointer) return run_first_fit(context, args, kPaged, "attention_paged");
  for (const TensorView& view : {args.new_keys, args.new_values})
    MSTAR_OP_EXPECT("attention",
                    are_heads(context, view, args.rows.num_tokens, args.kv.keys.dim(2), args.kv.keys.dim(3)));
#ifdef MSTAR_CUDA
  // Rows of one token alone: the kernel appends.
  if (context.backend() == Backend::cuda && args.rows.num_tokens == args.rows.num_rows &&
      attention_alone_cuda_fits(args))
    return run_first_fit(context, args, kPaged, "attention_paged");
#endif
  MSTAR_TRY(kv_append(context, {.keys = args.new_keys, .values = args.new_values, .rows = args.rows, .kv = args.kv}));
  return run_first_fit(context, args, kPaged, "attention_paged");
}

Status attention_slots(OpContext& context, const SlotAttentionArgs& args) {
  MSTAR_OP_EXPECT("attention", is_kv_pair(args.kv.keys, args.kv.values));
  MSTAR_OP_EXPECT("attention", args.kv.keys.dim(1) % kKeyUnit == 0 && args.kv.lengths && args.kv.slots);
  MSTAR_TRY(check_queries(context, args.q, args.out, args.rows, args.scale, args.kv.keys.dim(2), args.kv.keys.dim(3)));
  return run_first_fit(context, args, kSlots, "attention_slots");
}

}  // namespace mstar
