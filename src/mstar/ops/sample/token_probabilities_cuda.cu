// Probabilities of a few tokens of a row.
#include "mstar/ops/sample/sample_rows_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

struct Ids {
  std::int32_t at[kMaxTokenProbabilitiesCuda];
  int count = 0;
};

// One block a row.
__global__ void __launch_bounds__(kThreads)
    weigh_tokens(Rows logits, int vocabulary, const __grid_constant__ Ids ids, bool among_ids, Rows out) {
  await_inputs();
  __shared__ float maxima[kWarps];
  __shared__ double sums[kWarps];
  const float* const row = logits.row(blockIdx.x);
  const int count = among_ids ? ids.count : vocabulary;
  const auto logit = [&](int i) { return row[among_ids ? ids.at[i] : i]; };
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < count; i += kThreads) largest = fmaxf(largest, logit(i));
  largest = block_max<kWarps>(largest, maxima);
  double sum = 0;
  if (largest != -INFINITY)
    for (int i = threadIdx.x; i < count; i += kThreads) sum += expf(logit(i) - largest);
  sum = block_sum<kWarps>(sum, sums);
  for (int i = threadIdx.x; i < ids.count; i += kThreads)
    out.row(blockIdx.x)[i] =
        sum > 0 ? static_cast<float>(exp(static_cast<double>(row[ids.at[i]] - largest)) / sum) : 0.0f;
}

}  // namespace

bool token_probabilities_cuda_fits(const OpContext&, const TokenProbabilityArgs& args) {
  return args.ids.size() <= kMaxTokenProbabilitiesCuda;
}

Status token_probabilities_cuda(OpContext& context, const TokenProbabilityArgs& args) {
  if (args.logits.dim(0) == 0 || args.ids.empty()) return {};
  Ids ids;
  for (const std::int32_t id : args.ids) ids.at[ids.count++] = id;
  launch_kernel(context, weigh_tokens, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0, rows_of(args.logits),
                static_cast<int>(args.logits.dim(1)), ids, args.among_ids, rows_of(args.out));
  return cuda_launch_status("token_probabilities");
}

}  // namespace mstar
