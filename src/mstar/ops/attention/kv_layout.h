// How keys and values lie in memory on the CPU: known to kv_append and attention alone.
//
// Keys are stored by units of kKeyUnit tokens, transposed, so that scores are computed for 16 keys at a time with no
// shuffles; values are plain rows.
//   page: keys [kv_heads][head_dim][page_tokens],            values [kv_heads][page_tokens][head_dim]
//   slot: keys [kv_heads][capacity / 16][head_dim][16],      values [kv_heads][capacity][head_dim]
#pragma once

#include <cstdint>

#include "mstar/tensor/kv_view.h"

namespace mstar {

inline constexpr int kKeyUnit = 16;

// Element offsets of token `position` of one row's one kv head: dimension d of its key is at key + d * key_stride, of
// its value at value + d.
struct KvPlace {
  std::int64_t key = 0;
  std::int64_t key_stride = 0;
  std::int64_t value = 0;
};

inline KvPlace place_in_page(const PagedKvView& kv, int row, int kv_head, std::int64_t position) {
  const std::int64_t kv_heads = kv.keys.dim(2), d = kv.keys.dim(3), tokens = kv.page_tokens;
  const std::int64_t page = kv.page_table[static_cast<std::int64_t>(row) * kv.max_pages + position / tokens];
  const std::int64_t head = (page * kv_heads + kv_head) * tokens * d;
  return {head + position % tokens, tokens, head + position % tokens * d};
}

inline KvPlace place_in_slot(std::int64_t slot, std::int64_t kv_heads, std::int64_t capacity, std::int64_t d,
                             int kv_head, std::int64_t position) {
  const std::int64_t head = (slot * kv_heads + kv_head) * capacity * d;
  return {head + position / kKeyUnit * kKeyUnit * d + position % kKeyUnit, kKeyUnit, head + position * d};
}

inline KvPlace place_in_slot(const SlotKvView& kv, int row, int kv_head, std::int64_t position) {
  return place_in_slot(kv.slots[row], kv.keys.dim(2), kv.keys.dim(1), kv.keys.dim(3), kv_head, position);
}

inline bool is_kv_dtype(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

}  // namespace mstar
