#include "mstar/ops/attention/kv_layout_cuda.cuh"
#include "mstar/ops/cuda_rows.cuh"
#include "mstar/ops/kv_append/kv_append_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

template <class T>
struct Tokens {
  const T* data = nullptr;
  std::int64_t stride = 0;
};
template <class T>
Tokens<T> tokens_of(const TensorView& view) {
  return {view.data<T>(), view.stride(0)};
}

// One block a token, a unit a thread at a time: a head's elements are a multiple of 16. The lengths are on the device,
// so that nobody can refuse a row that leaves its pages here: such a token is not written. The pool never plans one.
template <class T, class Element>
__global__ void __launch_bounds__(128)
    append(Tokens<T> keys, Tokens<T> values, const std::int32_t* offsets, int num_rows, Pages pages, bool aligned) {
  await_inputs();
  const int token = blockIdx.x;
  const int row = row_of(offsets, num_rows, token);
  const int position = pages.lengths[row] - (offsets[row + 1] - token);
  const bool is_no_rows = token >= offsets[row + 1];
  if (is_no_rows || position < 0 || position >= pages.max_pages * pages.page_tokens) return;
  const std::int64_t to = pages.at(row, position, 0);
  const int count = pages.kv_heads * pages.head_dim;
  for (int i = threadIdx.x * kUnit; i < count; i += blockDim.x * kUnit) {
    float key[kUnit], value[kUnit];
    load_unit(keys.data + token * keys.stride + i, kUnit, aligned, key);
    load_unit(values.data + token * values.stride + i, kUnit, aligned, value);
    store_unit(key, kUnit, true, static_cast<Element*>(pages.keys) + to + i);
    store_unit(value, kUnit, true, static_cast<Element*>(pages.values) + to + i);
  }
}

// One block a token, a unit a thread at a time; a unit lies in one head. Slots are the pool's own numbers.
template <class T, class Element>
__global__ void __launch_bounds__(128) store(Tokens<T> keys, Tokens<T> values, const float* value_bias,
                                             const std::int32_t* offsets, int num_rows, Slots slots, bool aligned) {
  await_inputs();
  const int token = blockIdx.x;
  const int row = row_of(offsets, num_rows, token);
  const int position = token - offsets[row];
  if (position >= slots.capacity()) return;
  const int count = slots.kv_heads * slots.head_dim;
  for (int i = threadIdx.x * kUnit; i < count; i += blockDim.x * kUnit) {
    float key[kUnit], value[kUnit];
    load_unit(keys.data + token * keys.stride + i, kUnit, aligned, key);
    load_unit(values.data + token * values.stride + i, kUnit, aligned, value);
    if (value_bias) {
#pragma unroll
      for (int e = 0; e < kUnit; ++e) value[e] += value_bias[i + e];
    }
    const std::int64_t to = slots.at(row, position, i / slots.head_dim) + i % slots.head_dim;
    store_unit(key, kUnit, true, static_cast<Element*>(slots.keys) + to);
    store_unit(value, kUnit, true, static_cast<Element*>(slots.values) + to);
  }
}

}  // namespace

Status kv_store_cuda(OpContext& context, const KvStoreArgs& args) {
  if (args.rows.num_tokens == 0) return {};
  if (!rows_on_16_bytes(args.kv.keys) || !rows_on_16_bytes(args.kv.values))
    return internal_error("kv_store: slots begin on 16 bytes");
  const bool aligned = rows_on_16_bytes(args.keys) && rows_on_16_bytes(args.values);
  return with_float_type(args.keys.dtype, [&](auto given) {
    return with_float_type(args.kv.keys.dtype, [&](auto element) {
      using T = decltype(given);
      launch_kernel(context, store<T, decltype(element)>, args.rows.num_tokens, 128, 0, tokens_of<T>(args.keys),
                    tokens_of<T>(args.values), args.value_bias.template data<float>(), args.rows.offsets,
                    args.rows.num_rows, slots_of(args.kv), aligned);
      return cuda_launch_status("kv_store");
    });
  });
}

Status kv_append_cuda(OpContext& context, const KvAppendArgs& args) {
  if (args.rows.num_tokens == 0) return {};
  if (!rows_on_16_bytes(args.kv.keys) || !rows_on_16_bytes(args.kv.values))
    return internal_error("kv_append: pages begin on 16 bytes");
  const bool aligned = rows_on_16_bytes(args.keys) && rows_on_16_bytes(args.values);
  return with_float_type(args.keys.dtype, [&](auto given) {
    return with_float_type(args.kv.keys.dtype, [&](auto element) {
      using T = decltype(given);
      launch_kernel(context, append<T, decltype(element)>, args.rows.num_tokens, 128, 0, tokens_of<T>(args.keys),
                    tokens_of<T>(args.values), args.rows.offsets, args.rows.num_rows, pages_of(args.kv), aligned);
      return cuda_launch_status("kv_append");
    });
  });
}

}  // namespace mstar
