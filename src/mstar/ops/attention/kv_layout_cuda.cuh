// How keys and values lie in memory on CUDA: known to kv_append and attention alone. Both are plain rows,
// page: [page_tokens][kv_heads][head_dim].
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

}  // namespace mstar::cuda
