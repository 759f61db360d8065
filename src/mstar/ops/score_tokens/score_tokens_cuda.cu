#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/score_tokens/score_tokens_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

struct Problem {
  Rows logits;
  int first_token = 0;
  const std::int32_t* ids = nullptr;
  const std::int32_t* offsets = nullptr;
  int num_rows = 0;
  int lead = 0;
  int num_ids = 0;
  float* out = nullptr;
};

// One block a token.
__global__ void __launch_bounds__(kThreads) score(const Problem p) {
  await_inputs();
  __shared__ float maxima[kWarps];
  __shared__ double sums[kWarps];
  const int token = p.first_token + static_cast<int>(blockIdx.x);
  const int row = row_of(p.offsets, p.num_rows, token);
  if (token < p.offsets[row] + p.lead || token + 1 >= p.offsets[row + 1]) return;
  const float* const logits = p.logits.row(blockIdx.x);
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < p.num_ids; i += kThreads) largest = fmaxf(largest, logits[i]);
  largest = block_max<kWarps>(largest, maxima);
  double sum = 0;
  for (int i = threadIdx.x; i < p.num_ids; i += kThreads) sum += expf(logits[i] - largest);
  sum = block_sum<kWarps>(sum, sums);
  if (threadIdx.x != 0) return;
  const int target = p.ids[token + 1];
  const bool counts = target >= 0 && target < p.num_ids && sum > 0;
  p.out[token - p.lead - row * (p.lead + 1)] =
      counts ? static_cast<float>(exp(static_cast<double>(logits[target] - largest)) / sum) : 0.0f;
}

}  // namespace

Status score_tokens_cuda(OpContext& context, const ScoreTokensArgs& args) {
  const Problem p{.logits = rows_of(args.logits),
                  .first_token = static_cast<int>(args.first_token),
                  .ids = args.ids.data<std::int32_t>(),
                  .offsets = args.rows.offsets,
                  .num_rows = args.rows.num_rows,
                  .lead = args.lead,
                  .num_ids = args.num_ids,
                  .out = args.out.data<float>()};
  launch_kernel(context, score, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0, p);
  return cuda_launch_status("score_tokens");
}

}  // namespace mstar
