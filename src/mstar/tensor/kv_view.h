// Views of state that attention reads: pages of keys and values, and ragged rows.
#pragma once

#include "mstar/tensor/tensor.h"

namespace mstar {

// A batch of rows laid end to end: row r has tokens [offsets[r], offsets[r+1]).
struct RaggedView {
  const std::int32_t* offsets = nullptr;  // [num_rows + 1], on the device of the op
  int num_rows = 0;
  int num_tokens = 0;  // offsets[num_rows]
};

// Keys and values of one layer in pages. Row r holds lengths[r] tokens (after this step's append) in pages
// page_table[r * max_pages + i], i < ceil(lengths[r] / page_tokens). Page 0 is the sink: padding rows write there.
struct PagedKvView {
  TensorView keys;    // [num_pages, page_tokens, kv_heads, head_dim]
  TensorView values;  // same
  const std::int32_t* page_table = nullptr;  // [num_rows, max_pages]
  const std::int32_t* lengths = nullptr;     // [num_rows]
  int max_pages = 0;
  int page_tokens = 0;
};

}  // namespace mstar
