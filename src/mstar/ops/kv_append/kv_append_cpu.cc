#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/kv_append/kv_append_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/attention/kv_layout.h"
#include "mstar/ops/kv_append/kv_append_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

// One token of one kv head: the value as a row, the key spread over the dimensions of its unit.
template <class W>
HWY_INLINE void write_as(const float* key, const float* value, std::int64_t d, const KvPlace& place, void* keys,
                         void* values) {
  W* to_value = static_cast<W*>(values) + place.value;
  for (std::int64_t i = 0; i < d; i += kLanes) store_narrow(hn::LoadU(kF, value + i), to_value + i);
  W* to_key = static_cast<W*>(keys) + place.key;
  HWY_ALIGN W narrow[16];
  for (std::int64_t i = 0; i < d; i += 16) {
    for (int j = 0; j < 16; j += kLanes) store_narrow(hn::LoadU(kF, key + i + j), narrow + j);
    for (int j = 0; j < 16; ++j) to_key[(i + j) * place.key_stride] = narrow[j];
  }
}

void write_token(const float* key, const float* value, std::int64_t d, const KvPlace& place, const TensorView& keys,
                 const TensorView& values) {
  switch (keys.dtype) {
    case DType::f16:
      return write_as<Half>(key, value, d, place, keys.pointer, values.pointer);
    case DType::bf16:
      return write_as<BFloat16>(key, value, d, place, keys.pointer, values.pointer);
    default:
      return write_as<float>(key, value, d, place, keys.pointer, values.pointer);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(write_token);

namespace {

// place(row, kv_head, index, count) of the row's index-th token of `count`.
template <class Args, class Place>
void write_rows(OpContext& context, const Args& args, Place place) {
  const std::int64_t kv_heads = args.keys.dim(1), d = args.keys.dim(2);
  const auto write = HWY_DYNAMIC_DISPATCH(write_token);
  const auto one = [&](std::int64_t tile, int) {
    const int row = static_cast<int>(tile / kv_heads), kv_head = static_cast<int>(tile % kv_heads);
    const std::int64_t first = args.rows.offsets[row], n = args.rows.offsets[row + 1] - first;
    const float* key = args.keys.template data<float>() + first * args.keys.stride(0) + kv_head * d;
    const float* value = args.values.template data<float>() + first * args.values.stride(0) + kv_head * d;
    for (std::int64_t i = 0; i < n; ++i)
      write(key + i * args.keys.stride(0), value + i * args.values.stride(0), d, place(row, kv_head, i, n),
            args.kv.keys, args.kv.values);
  };
  // A decode step writes a few kilobytes: not worth waking the pool for.
  constexpr std::int64_t kWorthThreads = 32768;
  if (args.rows.num_tokens * kv_heads * d < kWorthThreads) {
    for (std::int64_t tile = 0; tile < args.rows.num_rows * kv_heads; ++tile) one(tile, 0);
  } else {
    context.parallel_for(args.rows.num_rows * kv_heads, one);
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
  write_rows(context, args, [&](int row, int kv_head, std::int64_t i, std::int64_t n) {
    return place_in_page(args.kv, row, kv_head, args.kv.lengths[row] - n + i);
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
  write_rows(context, args, [&](int row, int kv_head, std::int64_t i, std::int64_t) {
    return place_in_slot(args.kv, row, kv_head, i);
  });
  return {};
}

}  // namespace mstar
#endif
