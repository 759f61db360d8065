// Writes keys and values into pages or slots.
#pragma once

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct KvAppendArgs {
  TensorView keys;    // [tokens, kv_heads, head_dim] f32, on CUDA also f16 or bf16; tokens may lie apart
  TensorView values;  // same
  RaggedView rows;
  PagedKvView kv;  // f32, f16 or bf16, head_dim a multiple of 16; lengths count the appended tokens
};

// Token i of row r, which has n tokens here, goes to position kv.lengths[r] - n + i of its pages.
// Errors: internal (shapes, or a position outside the page table; on CUDA such a token is not written). No workspace.
Status kv_append(OpContext& context, const KvAppendArgs& args);

struct KvStoreArgs {
  TensorView keys;    // [tokens, kv_heads, head_dim] f32, on CUDA also f16 or bf16; tokens may lie apart
  TensorView values;  // same
  RaggedView rows;
  SlotKvView kv;  // lengths[r] must be the row's number of tokens
  // On CUDA: added to the values, [kv_heads * head_dim] f32, or a null pointer. A bias that all keys of a head share
  // would change no weight.
  TensorView value_bias = {};
};

// Row r fills slot kv.slots[r] from position 0. Errors: internal (shapes, slot or length out of range; on CUDA tokens
// past a slot's end are not written). No workspace.
Status kv_store(OpContext& context, const KvStoreArgs& args);

}  // namespace mstar
