#include "mstar/ops/attention/kv_layout.h"
#include "mstar/ops/kv_append/kv_append_kernels.h"

namespace mstar {
namespace {

void set_element(const TensorView& view, std::int64_t at, float value) {
  switch (view.dtype) {
    case DType::f16:
      view.data<Half>()[at] = to_half(value);
      break;
    case DType::bf16:
      view.data<BFloat16>()[at] = to_bfloat16(value);
      break;
    default:
      view.data<float>()[at] = value;
  }
}

template <class Args>
void write_token(const Args& args, std::int64_t token, std::int64_t kv_head, const KvPlace& place) {
  const std::int64_t d = args.keys.dim(2);
  const float* key = args.keys.template data<float>() + token * args.keys.stride(0) + kv_head * d;
  const float* value = args.values.template data<float>() + token * args.values.stride(0) + kv_head * d;
  for (std::int64_t i = 0; i < d; ++i) {
    set_element(args.kv.keys, place.key + i * place.key_stride, key[i]);
    set_element(args.kv.values, place.value + i, value[i]);
  }
}

}  // namespace

Status kv_append_cpu(OpContext& context, const KvAppendArgs& args) {
  for (int row = 0; row < args.rows.num_rows; ++row) {
    const std::int64_t n = args.rows.offsets[row + 1] - args.rows.offsets[row];
    if (args.kv.lengths[row] < n ||
        args.kv.lengths[row] > static_cast<std::int64_t>(args.kv.max_pages) * args.kv.page_tokens)
      return internal_error("kv_append: row " + std::to_string(row) + " ends at " +
                            std::to_string(args.kv.lengths[row]) + " tokens, outside of its pages");
  }
  const std::int64_t kv_heads = args.keys.dim(1);
  context.parallel_for(args.rows.num_rows * kv_heads, [&](std::int64_t tile, int) {
    const int row = static_cast<int>(tile / kv_heads), kv_head = static_cast<int>(tile % kv_heads);
    const std::int64_t first = args.rows.offsets[row], n = args.rows.offsets[row + 1] - first;
    for (std::int64_t i = 0; i < n; ++i)
      write_token(args, first + i, kv_head, place_in_page(args.kv, row, kv_head, args.kv.lengths[row] - n + i));
  });
  return {};
}

Status kv_store_cpu(OpContext& context, const KvStoreArgs& args) {
  for (int row = 0; row < args.rows.num_rows; ++row) {
    const std::int64_t n = args.rows.offsets[row + 1] - args.rows.offsets[row];
    if (args.kv.lengths[row] != n || n > args.kv.keys.dim(1) || args.kv.slots[row] < 0 ||
        args.kv.slots[row] >= args.kv.keys.dim(0))
      return internal_error("kv_store: row " + std::to_string(row) + " of " + std::to_string(n) +
                            " tokens does not fit its slot");
  }
  const std::int64_t kv_heads = args.keys.dim(1);
  context.parallel_for(args.rows.num_rows * kv_heads, [&](std::int64_t tile, int) {
    const int row = static_cast<int>(tile / kv_heads), kv_head = static_cast<int>(tile % kv_heads);
    const std::int64_t first = args.rows.offsets[row], n = args.rows.offsets[row + 1] - first;
    for (std::int64_t i = 0; i < n; ++i) write_token(args, first + i, kv_head, place_in_slot(args.kv, row, kv_head, i));
  });
  return {};
}

}  // namespace mstar
