// The kernels of attention, for its tables.
#pragma once

#include <cstdint>

#include "mstar/ops/attention/attention.h"

namespace mstar {
Status attention_dense_cpu(OpContext& context, const DenseAttentionArgs& args);
Status attention_paged_cpu(OpContext& context, const PagedAttentionArgs& args);
Status attention_slots_cpu(OpContext& context, const SlotAttentionArgs& args);

// ---- defined where the build has CUDA
// head_dim <= 256, q and out of one type.
bool attention_paged_cuda_fits(const OpContext& context, const PagedAttentionArgs& args);
Status attention_paged_cuda(OpContext& context, const PagedAttentionArgs& args);
// Its parts. The first two for bf16 pages, head_dim 64, 128 or 256, and rows on 16 bytes; the second for bf16 queries.
// `all_tokens`: there are as many tokens as rows, and the call attends them all, however they lie; else only those of
// rows with one token.
Status attention_decode_cuda(OpContext& context, const PagedAttentionArgs& args, bool all_tokens);
// Rows of at least `least` tokens.
Status attention_prefill_cuda(OpContext& context, const PagedAttentionArgs& args, int least);

// q and out of one type, head_dim <= 256.
bool attention_slots_cuda_fits(const OpContext& context, const SlotAttentionArgs& args);
Status attention_slots_cuda(OpContext& context, const SlotAttentionArgs& args);
// Besides: k and v of q's type, their tokens equally far apart and on 16 bytes, head_dim a multiple of 16.
bool attention_dense_cuda_fits(const OpContext& context, const DenseAttentionArgs& args);
Status attention_dense_cuda(OpContext& context, const DenseAttentionArgs& args);
// For heads that share no keys (as many kv heads) and have no gate, bf16 keys, head_dim kAttentionWholeHeadDim, rows on
// 16 bytes; bf16 queries of slots. Rows of at most `most` tokens. With new_keys (of bf16, on 16 bytes) those of the
// step are read from there, and the kernel writes them to the pages.
bool attention_alone_cuda_fits(const PagedAttentionArgs& args);
Status attention_alone_cuda(OpContext& context, const PagedAttentionArgs& args, int most);
Status attention_alone_cuda(OpContext& context, const SlotAttentionArgs& args, int most);
// Rows of up to so many tokens are attended token by token: they are few, and so would be the tiles of their heads.
inline constexpr int kAttentionAloneTokens = 8;
// Their parts, all for bf16 queries and keys, rows on 16 bytes, and this head_dim.
inline constexpr int kAttentionWholeHeadDim = 64;
Status attention_decode_cuda(OpContext& context, const SlotAttentionArgs& args, bool all_tokens);
Status attention_whole_cuda(OpContext& context, const SlotAttentionArgs& args, int least);
Status attention_whole_cuda(OpContext& context, const DenseAttentionArgs& args);
}  // namespace mstar
