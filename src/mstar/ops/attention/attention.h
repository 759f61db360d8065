// softmax(q k^T scale) v for ragged rows over dense, paged or slotted keys and values; grouped queries.
//
// One order of arithmetic everywhere: scores are chains over head_dim, keys go in blocks of 128 with a running maximum,
// and a block's values are added key by key. So a query's bits do not depend on the other rows, on how many queries
// come along (chunked prefill equals decode), on page size, tiles or threads.
#pragma once

#include <cstddef>

#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

struct DenseAttentionArgs {
  TensorView q;  // [tokens, heads, head_dim] f32, on CUDA also bf16; tokens may lie apart (of a fused projection)
  TensorView k;  // [tokens, kv_heads, head_dim] of q's type
  TensorView v;  // same
  RaggedView rows;
  float scale = 1.0f;  // > 0
  bool causal = false;
  TensorView out;  // [tokens, heads, head_dim] of q's type; tokens may lie apart; must not overlap q, k or v
  // On CUDA, for heads that share no keys and are for tensor cores (below): what is added to the queries and to the
  // values, [heads * head_dim] f32, both or null pointers. A bias that all keys of a head share would change no weight.
  TensorView q_bias = {}, v_bias = {};
};

// Every token of a row sees the row's tokens (causal: up to itself). Any head_dim; on CUDA a multiple of 16 up to 256,
// with k and v on 16 bytes. There bf16 with head_dim 64, not causal, is for tensor cores, with the weights rounded to
// bf16; all else goes the CPU's way, slowly. All can be captured.
// Errors: internal (shapes). Cost: 4 n^2 heads head_dim flop a row.
Status attention_dense(OpContext& context, const DenseAttentionArgs& args);
// Arena bytes that a call takes and gives back; also for the calls below.
std::size_t attention_dense_workspace_bytes(std::int64_t num_tokens, int kv_heads, int head_dim, int num_threads,
                                            std::int64_t num_rows = 1);

struct PagedAttentionArgs {
  TensorView q;  // [tokens, heads, head_dim] f32, on CUDA also bf16; tokens may lie apart
  RaggedView rows;
  PagedKvView kv;      // after kv_append, or before it with the two last
  float scale = 1.0f;  // > 0
  TensorView out;      // [tokens, heads, head_dim] of q's type
  // The keys and values of these tokens, [tokens, kv_heads, head_dim], as for kv_append: the call appends them itself.
  TensorView new_keys = {}, new_values = {};
  // [tokens, heads, head_dim] of q's type, tokens and heads may lie apart; or a null pointer. With it the output is
  // sigmoid(gate) * attention, on the CPU to the bits of sigmoid_mul (ops/elementwise), on CUDA rounded once. Must not
  // overlap out.
  TensorView gate = {};
};

// Causal: query i of row r, which has n queries here, is at position kv.lengths[r] - n + i and sees keys up to itself.
// head_dim and page_tokens are multiples of 16. Errors: internal (shapes).
//
// On CUDA, with bf16 pages, head_dim 64, 128 or 256 and rows on 16 bytes, tensor cores do it. In rows of one token
// scores and weights keep about 16 bits of mantissa, so the result is good to about 1e-5. Longer rows with bf16 queries
// round the weights to bf16; those with f32 queries go the CPU's way, slowly. A query's bits depend on its own row, on
// whether that has one token or more (a call with as many tokens as rows counts as one of single tokens), and on
// nothing else of the call. All can be captured. Keys and values of earlier tokens are read while the kernels in front
// still run: of the pages those may write what belongs to the call's own tokens, and nothing else. Where no two heads
// share keys, head_dim is 64 and there is no gate, rows of one token are for a kernel that sums in f32; new_keys and
// new_values are best given, for it needs no kernel in front that appends them. None takes workspace.
Status attention_paged(OpContext& context, const PagedAttentionArgs& args);
std::size_t attention_paged_workspace_bytes(int head_dim, int num_threads);  // of the CPU's

struct SlotAttentionArgs {
  TensorView q;  // [tokens, heads, head_dim] f32, on CUDA also bf16; tokens may lie apart
  RaggedView rows;
  SlotKvView kv;       // after kv_store
  float scale = 1.0f;  // > 0
  TensorView out;      // [tokens, heads, head_dim] of q's type
};

// Cross attention: each query of row r sees the kv.lengths[r] tokens of its slot. head_dim and capacity are multiples
// of 16. Errors: internal (shapes). On CUDA as attention_paged, on tensor cores with bf16 queries and slots and
// head_dim 64. Where no two heads share keys, rows of up to eight tokens are for a kernel that sums in f32 and begins
// while the kernels in front run: neither the latest kernel that waited before all else (await_inputs(),
// ops/cuda_kernel.cuh) nor any since may write the slots.
Status attention_slots(OpContext& context, const SlotAttentionArgs& args);
std::size_t attention_slots_workspace_bytes(int head_dim, int num_threads);

}  // namespace mstar
