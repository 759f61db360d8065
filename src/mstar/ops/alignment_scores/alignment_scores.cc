#include "mstar/ops/alignment_scores/alignment_scores.h"

#include <algorithm>

#include "mstar/ops/alignment_scores/alignment_scores_kernels.h"
#include "mstar/ops/head_rows.h"
#include "mstar/ops/kernel_table.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {

constexpr Kernel<AlignmentScoresArgs> kKernels[] = {
    {"cpu", Backend::cpu, nullptr, alignment_scores_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, alignment_scores_cuda_fits, alignment_scores_cuda},
#endif
};

}  // namespace

Status alignment_scores(OpContext& context, const AlignmentScoresArgs& args) {
  constexpr const char* kOp = "alignment_scores";
  const std::int64_t tokens = args.rows.num_tokens, columns = args.scores.dim(1);
  MSTAR_OP_EXPECT(kOp, args.q.shape.rank() == 3 && args.kv.keys.shape.rank() == 4);
  MSTAR_OP_EXPECT(kOp,
                  is_activation_heads(context.backend(), args.q, tokens, args.kv.keys.dim(2), args.kv.keys.dim(3)));
  MSTAR_OP_EXPECT(kOp, args.kv.keys.dim(3) % 16 == 0 && args.kv.keys.dim(1) % 16 == 0);
  MSTAR_OP_EXPECT(kOp, is_vector_of(args.frames, DType::i32, tokens));
  MSTAR_OP_EXPECT(kOp, columns > 0 && columns <= args.kv.keys.dim(1));
  MSTAR_OP_EXPECT(kOp, is_rows_of(args.scores, DType::f32, tokens, columns) && args.scores.contiguous());
  MSTAR_OP_EXPECT(kOp, is_rows_of(args.weights, DType::f32, tokens, columns) && args.weights.contiguous());
  MSTAR_OP_EXPECT(kOp, args.scale > 0 && args.rows.offsets && args.kv.slots);
  const std::int64_t heads = args.q.dim(1);
  MSTAR_OP_EXPECT(
      kOp, std::all_of(args.heads.begin(), args.heads.end(), [heads](int each) { return each >= 0 && each < heads; }));
  if (tokens == 0) return {};
  if (args.heads.empty()) {
    if (!args.adds) context.device.fill_zero(args.scores.pointer, args.scores.bytes(), context.stream);
    return {};
  }
  return run_first_fit(context, args, kKernels, kOp);
}

}  // namespace mstar
