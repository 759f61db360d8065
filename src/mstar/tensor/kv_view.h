// Views of state that attention reads: pages of keys and values, and ragged rows.
#pragma once

#include "mstar/tensor/tensor.h"

namespace mstar {

// A batch of rows laid end to end: row r has tokens [offsets[r], offsets[r+1]).
struct RaggedView {
  const std::int32_t* offsets = nullptr;  // [num_rows + 1], on the device of the op
  int num_rows = 0;
  // offsets[num_rows]; for the ops of decoders on CUDA also more: tokens past it are no row's, nothing is kept of them,
  // and what an op computes for them is anything.
  int num_tokens = 0;
};

// What a step keeps beside the new states of its rows: slot slots[r] gets row r's state as it is after the first
// tokens[r] of the row's tokens. 0: nothing is kept of the row; never more than the row has. Such a slot is no row's
// own and no other row's either. Null: nothing is kept of any row.
struct KeptStates {
  const std::int32_t* tokens = nullptr;  // [num_rows], on the device of the op
  const std::int32_t* slots = nullptr;   // [num_rows]
};

// Keys and values of one layer in pages. Row r holds lengths[r] tokens (after this step's append) in pages
// page_table[r * max_pages + i], i < ceil(lengths[r] / page_tokens). Page 0 is the sink: padding rows write there.
// The axes are logical. How the elements of one page lie is the backend's, and only kv_append and attention look inside
// (on the CPU keys are [kv_heads][head_dim][page_tokens] and values [kv_heads][page_tokens][head_dim]); copy whole
// pages only.
struct PagedKvView {
  TensorView keys;                           // [num_pages, page_tokens, kv_heads, head_dim]
  TensorView values;                         // same
  const std::int32_t* page_table = nullptr;  // [num_rows, max_pages]
  const std::int32_t* lengths = nullptr;     // [num_rows]
  int max_pages = 0;
  int page_tokens = 0;
};

// Keys and values of one layer in fixed slots, for cross attention: row r's lengths[r] tokens are in slot slots[r].
// Axes are logical, as above (on the CPU a slot's keys are [kv_heads][capacity / 16][head_dim][16], values
// [kv_heads][capacity][head_dim]); capacity is a multiple of 16.
struct SlotKvView {
  TensorView keys;                        // [num_slots, capacity_tokens, kv_heads, head_dim]
  TensorView values;                      // same
  const std::int32_t* slots = nullptr;    // [num_rows]
  const std::int32_t* lengths = nullptr;  // [num_rows]
};

}  // namespace mstar
