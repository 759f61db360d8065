#include "mstar/ops/score_tokens/score_tokens.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/sample/row_scan.h"
#include "mstar/ops/score_tokens/score_tokens_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<ScoreTokensArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, score_tokens_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, nullptr, score_tokens_cuda},
#endif
};

}  // namespace

Status score_tokens(OpContext& context, const ScoreTokensArgs& args) {
  constexpr const char* kOp = "score_tokens";
  const std::int64_t tokens = args.rows.num_tokens;
  MSTAR_OP_EXPECT(kOp, args.logits.shape.rank() == 2 && args.lead >= 0 && args.rows.offsets);
  MSTAR_OP_EXPECT(kOp, is_rows_of(args.logits, DType::f32, args.logits.dim(0), args.logits.dim(1)));
  MSTAR_OP_EXPECT(kOp, args.first_token >= 0 && args.first_token + args.logits.dim(0) <= tokens);
  MSTAR_OP_EXPECT(kOp, args.num_ids > 0 && args.num_ids <= args.logits.dim(1));
  MSTAR_OP_EXPECT(kOp, is_vector_of(args.ids, DType::i32, tokens));
  MSTAR_OP_EXPECT(kOp, is_vector_of(args.out, DType::f32, args.out.dim(0)));
  MSTAR_OP_EXPECT(kOp, args.out.dim(0) >= tokens - args.rows.num_rows * (args.lead + 1));
  if (args.logits.dim(0) == 0) return {};
  return run_first_fit(context, args, kKernels, kOp);
}

Status score_tokens_cpu(OpContext& context, const ScoreTokensArgs& args) {
  const std::int32_t* const offsets = args.rows.offsets;
  context.parallel_for(args.logits.dim(0), [&](std::int64_t index, int) {
    const auto token = static_cast<std::int32_t>(args.first_token + index);
    const auto row = std::upper_bound(offsets, offsets + args.rows.num_rows, token) - offsets - 1;
    const std::int32_t within = token - offsets[row];
    if (within < args.lead || token + 1 >= offsets[row + 1]) return;
    const std::int32_t target = args.ids.data<std::int32_t>()[token + 1];
    float& out = args.out.data<float>()[token - args.lead - row * (args.lead + 1)];
    out = 0;
    if (target < 0 || target >= args.num_ids) return;
    const std::span<const float> logits(args.logits.data<float>() + index * args.logits.stride(0),
                                        static_cast<std::size_t>(args.num_ids));
    const float largest = logits[largest_index(logits)];
    out = static_cast<float>(std::exp(static_cast<double>(logits[static_cast<std::size_t>(target)] - largest)) /
                             sum_of_exp(logits, largest));
  });
  return {};
}

}  // namespace mstar
