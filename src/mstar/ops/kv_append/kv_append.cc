#include "mstar/ops/kv_append/kv_append.h"

#include "mstar/ops/attention/kv_layout.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/kv_append/kv_append_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<KvAppendArgs> kAppend[] = {
    {"cpu", Backend::cpu, nullptr, kv_append_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, kv_append_cuda},
#endif
};
constexpr Kernel<KvStoreArgs> kStore[] = {
    {"cpu", Backend::cpu, nullptr, kv_store_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, kv_store_cuda},
#endif
};

Status check_tokens(Backend backend, const TensorView& k, const TensorView& v, const TensorView& keys,
                    const TensorView& values, const RaggedView& rows) {
  MSTAR_OP_EXPECT("kv_append", keys.shape.rank() == 4 && keys.shape == values.shape && keys.dtype == values.dtype);
  MSTAR_OP_EXPECT("kv_append",
                  is_kv_dtype(keys.dtype) && keys.contiguous() && values.contiguous() && keys.dim(3) % 16 == 0);
  MSTAR_OP_EXPECT("kv_append", k.dtype == v.dtype);
  MSTAR_OP_EXPECT("kv_append", is_activation_heads(backend, k, rows.num_tokens, keys.dim(2), keys.dim(3)));
  MSTAR_OP_EXPECT("kv_append", is_activation_heads(backend, v, rows.num_tokens, keys.dim(2), keys.dim(3)));
  return {};
}

}  // namespace

Status kv_append(OpContext& context, const KvAppendArgs& args) {
  MSTAR_TRY(check_tokens(context.backend(), args.keys, args.values, args.kv.keys, args.kv.values, args.rows));
  MSTAR_OP_EXPECT("kv_append", args.kv.page_tokens > 0 && args.kv.keys.dim(1) == args.kv.page_tokens);
  MSTAR_OP_EXPECT("kv_append", args.kv.lengths && args.kv.page_table);
  return run_first_fit(context, args, kAppend, "kv_append");
}

Status kv_store(OpContext& context, const KvStoreArgs& args) {
  MSTAR_TRY(check_tokens(context.backend(), args.keys, args.values, args.kv.keys, args.kv.values, args.rows));
  MSTAR_OP_EXPECT("kv_store", args.kv.keys.dim(1) % kKeyUnit == 0 && args.kv.lengths && args.kv.slots);
  const std::int64_t width = args.kv.keys.dim(2) * args.kv.keys.dim(3);
  MSTAR_OP_EXPECT("kv_store", !args.value_bias.pointer || (context.backend() == Backend::cuda &&
                                                           is_vector_of(args.value_bias, DType::f32, width)));
  return run_first_fit(context, args, kStore, "kv_store");
}

}  // namespace mstar
