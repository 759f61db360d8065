// How keys and values lie in memory on CUDA: known to kv_append and attention alone. Both are plain rows,
// page: [page_tokens][kv_heads][head_dim], slot: [kv_heads][capacity][head_dim].
#pragma once

#include <cstdint>

#include "mstar/tensor/kv_view.h"

namespace mstar::cuda {

// Pages as a kernel sees them.
struct Pages {
  void* keys = nullptr;
  void* values = nullptr;
  const std::int32_t* page_table = nullptr;
  const std::int32_t* lengths = nullptr;
  int max_pages = 0;
  int page_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Element offset of one head of the token at `position` of a row.
  __device__ std::int64_t at(int row, int position, int kv_head) const {
    const std::int64_t page = page_table[static_cast<std::int64_t>(row) * max_pages + position / page_tokens];
    return ((page * page_tokens + position % page_tokens) * kv_heads + kv_head) * head_dim;
  }
  // From one position of a head to the next of the same page.
  __device__ std::int64_t stride() const { return kv_heads * head_dim; }
  __host__ __device__ int capacity() const { return max_pages * page_tokens; }
  // Keys that token `i` of a row with `count` here sees; what lies past the row's pages cannot be read.
  __device__ int num_keys(int row, int count, int i) const { return min(lengths[row] - count + i + 1, capacity()); }
  // Those that the step's kernels do not write.
  __device__ int num_old_keys(int row, int count) const { return max(min(lengths[row] - count, capacity()), 0); }
};

// Slots as a kernel sees them.
struct Slots {
  void* keys = nullptr;
  void* values = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* lengths = nullptr;
  int max_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
  __device__ std::int64_t at(int row, int position, int kv_head) const {
    return ((static_cast<std::int64_t>(slots[row]) * kv_heads + kv_head) * max_tokens + position) * head_dim;
  }
  __device__ std::int64_t stride() const { return head_dim; }  // from one position of a head to the next
  __host__ __device__ int capacity() const { return max_tokens; }
  // Every token sees them all.
  __device__ int num_keys(int row, int, int) const { return min(lengths[row], max_tokens); }
  // The kernel in front may have stored them.
  __device__ int num_old_keys(int, int) const { return 0; }
};

// Keys and values of the call's own tokens, [tokens, kv_heads, head_dim], tokens apart.
struct DenseKeys {
  const void* keys = nullptr;
  const void* values = nullptr;
  const std::int32_t* offsets = nullptr;
  std::int64_t token_stride = 0;
  int kv_heads = 0;
  int head_dim = 0;
  bool causal = false;
  __device__ std::int64_t at(int row, int position, int kv_head) const {
    return (offsets[row] + position) * token_stride + kv_head * head_dim;
  }
  __device__ std::int64_t stride() const { return token_stride; }
  __device__ int num_keys(int, int count, int i) const { return causal ? i + 1 : count; }
};

inline Pages pages_of(const PagedKvView& kv) {
  return {kv.keys.pointer,
          kv.values.pointer,
          kv.page_table,
          kv.lengths,
          kv.max_pages,
          kv.page_tokens,
          static_cast<int>(kv.keys.dim(2)),
          static_cast<int>(kv.keys.dim(3))};
}

inline Slots slots_of(const SlotKvView& kv) {
  return {kv.keys.pointer,
          kv.values.pointer,
          kv.slots,
          kv.lengths,
          static_cast<int>(kv.keys.dim(1)),
          static_cast<int>(kv.keys.dim(2)),
          static_cast<int>(kv.keys.dim(3))};
}

}  // namespace mstar::cuda
