#include <algorithm>
#include <cmath>
#include <limits>

#include "mstar/ops/attention/attention_kernels.h"
#include "mstar/ops/attention/kv_layout.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif

namespace mstar {
namespace {

constexpr std::int64_t kBlock = 128;

float element(const TensorView& view, std::int64_t at) {
  switch (view.dtype) {
    case DType::f16:
      return to_float(view.data<Half>()[at]);
    case DType::bf16:
      return to_float(view.data<BFloat16>()[at]);
    default:
      return view.data<float>()[at];
  }
}

// One query of one head over `num_keys` keys; place(position) -> KvPlace.
template <class Place>
void attend(const float* q, std::int64_t d, float scale, std::int64_t num_keys, const TensorView& keys,
            const TensorView& values, Place place, float* out) {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  std::fill(out, out + d, 0.0f);
  for (std::int64_t begin = 0; begin < num_keys; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, num_keys);
    float scores[kBlock];
    const float previous = largest;
    for (std::int64_t p = begin; p < end; ++p) {
      const KvPlace at = place(p);
      float dot = 0;
      for (std::int64_t i = 0; i < d; ++i) dot = std::fma(q[i], element(keys, at.key + i * at.key_stride), dot);
      scores[p - begin] = dot * scale;
      largest = std::max(largest, dot * scale);
    }
    const float correction = std::exp(previous - largest);
    sum *= correction;
    for (std::int64_t i = 0; i < d; ++i) out[i] *= correction;
    for (std::int64_t p = begin; p < end; ++p) {
      const float weight = std::exp(scores[p - begin] - largest);
      const KvPlace at = place(p);
      sum += weight;
      for (std::int64_t i = 0; i < d; ++i) out[i] = std::fma(weight, element(values, at.value + i), out[i]);
    }
  }
  for (std::int64_t i = 0; i < d; ++i) out[i] = num_keys > 0 ? out[i] / sum : 0.0f;
}

// keys_of(row, i, n) -> how many keys query i of the row's n sees; place(row, kv_head, position).
template <class KeysOf, class Place>
void attend_rows(OpContext& context, const TensorView& q, const RaggedView& rows, float scale, const TensorView& keys,
                 const TensorView& values, std::int64_t kv_heads, const TensorView& out, KeysOf keys_of, Place place) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), group = heads / kv_heads;
  context.parallel_for(rows.num_rows * heads, [&](std::int64_t tile, int) {
    const int row = static_cast<int>(tile / heads), head = static_cast<int>(tile % heads);
    const int kv_head = static_cast<int>(head / group);
    const std::int64_t first = rows.offsets[row], n = rows.offsets[row + 1] - first;
    for (std::int64_t i = 0; i < n; ++i) {
      attend(
          q.data<float>() + (first + i) * q.stride(0) + head * d, d, scale, keys_of(row, i, n), keys, values,
          [&](std::int64_t position) { return place(row, kv_head, position); },
          out.data<float>() + (first + i) * out.stride(0) + head * d);
    }
  });
}

}  // namespace

Status attention_dense_cpu(OpContext& context, const DenseAttentionArgs& args) {
  const std::int64_t d = args.q.dim(2);
  attend_rows(
      context, args.q, args.rows, args.scale, args.k, args.v, args.k.dim(1), args.out,
      [&](int, std::int64_t i, std::int64_t n) { return args.causal ? i + 1 : n; },
      [&](int row, int kv_head, std::int64_t position) -> KvPlace {
        const std::int64_t token = args.rows.offsets[row] + position;
        return {token * args.k.stride(0) + kv_head * d, 1, token * args.v.stride(0) + kv_head * d};
      });
  return {};
}

Status attention_paged_cpu(OpContext& context, const PagedAttentionArgs& args) {
  attend_rows(
      context, args.q, args.rows, args.scale, args.kv.keys, args.kv.values, args.kv.keys.dim(2), args.out,
      [&](int row, std::int64_t i, std::int64_t n) { return args.kv.lengths[row] - n + i + 1; },
      [&](int row, int kv_head, std::int64_t position) { return place_in_page(args.kv, row, kv_head, position); });
  return {};
}

Status attention_slots_cpu(OpContext& context, const SlotAttentionArgs& args) {
  attend_rows(
      context, args.q, args.rows, args.scale, args.kv.keys, args.kv.values, args.kv.keys.dim(2), args.out,
      [&](int row, std::int64_t, std::int64_t) { return static_cast<std::int64_t>(args.kv.lengths[row]); },
      [&](int row, int kv_head, std::int64_t position) { return place_in_slot(args.kv, row, kv_head, position); });
  return {};
}

std::size_t attention_dense_workspace_bytes(std::int64_t, int, int, int) { return 0; }
std::size_t attention_paged_workspace_bytes(int, int) { return 0; }
std::size_t attention_slots_workspace_bytes(int, int) { return 0; }

}  // namespace mstar
