#include "mstar/ops/sample/sample.h"

#include "mstar/ops/kernel_table.h"
#include "mstar/ops/sample/sample_kernels.h"
#include "mstar/ops/view_checks.h"

namespace mstar {
namespace {
constexpr Kernel<SampleArgs> kSample[] = {
    {"cpu", Backend::cpu, nullptr, sample_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, sample_cuda_fits, sample_cuda},
#endif
};
constexpr Kernel<TokenProbabilityArgs> kProbabilities[] = {
    {"cpu", Backend::cpu, nullptr, token_probabilities_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, token_probabilities_cuda_fits, token_probabilities_cuda},
#endif
};
constexpr Kernel<LogProbArgs> kLogProbs[] = {
    {"cpu", Backend::cpu, nullptr, log_probabilities_cpu},
#ifdef MSTAR_CUDA
    {"cuda", Backend::cuda, log_probabilities_cuda_fits, log_probabilities_cuda},
#endif
};
}  // namespace

Status sample(OpContext& context, const SampleArgs& args) {
  MSTAR_OP_EXPECT("sample", args.logits.shape.rank() == 2 && args.logits.dim(1) > 0);
  const std::int64_t num_rows = args.logits.dim(0);
  MSTAR_OP_EXPECT("sample", is_rows_of(args.logits, DType::f32, num_rows, args.logits.dim(1)));
  MSTAR_OP_EXPECT("sample", args.parameters.rows || static_cast<std::int64_t>(args.rows.size()) == num_rows);
  MSTAR_OP_EXPECT("sample", !args.parameters.rows || context.backend() == Backend::cuda);
  MSTAR_OP_EXPECT("sample", is_vector_of(args.tokens, DType::i32, num_rows));
  MSTAR_OP_EXPECT("sample", is_vector_of(args.log_probs, DType::f32, num_rows));
  return run_first_fit(context, args, kSample, "sample");
}

Status token_probabilities(OpContext& context, const TokenProbabilityArgs& args) {
  MSTAR_OP_EXPECT("token_probabilities", args.logits.shape.rank() == 2 && args.logits.dim(1) > 0);
  const std::int64_t num_rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
  MSTAR_OP_EXPECT("token_probabilities", is_rows_of(args.logits, DType::f32, num_rows, vocabulary));
  MSTAR_OP_EXPECT("token_probabilities",
                  is_rows_of(args.out, DType::f32, num_rows, static_cast<std::int64_t>(args.ids.size())));
  for (const std::int32_t id : args.ids)
    if (id < 0 || id >= vocabulary)
      return bad_model("token id " + std::to_string(id) + " is outside the vocabulary of " +
                       std::to_string(vocabulary));
  return run_first_fit(context, args, kProbabilities, "token_probabilities");
}

Status log_probabilities(OpContext& context, const LogProbArgs& args) {
  MSTAR_OP_EXPECT("log_probabilities", args.logits.shape.rank() == 1 && args.logits.dim(0) > 0);
  MSTAR_OP_EXPECT("log_probabilities", args.drawn || (args.token >= 0 && args.token < args.logits.dim(0)));
  MSTAR_OP_EXPECT("log_probabilities", !args.drawn || context.backend() == Backend::cuda);
  MSTAR_OP_EXPECT("log_probabilities", args.out.shape.rank() == 2 && args.out.dim(0) > 0 && args.out.contiguous());
  MSTAR_OP_EXPECT("log_probabilities", is_rows_of(args.out, DType::f32, args.out.dim(0), 2));
  return run_first_fit(context, args, kLogProbs, "log_probabilities");
}

}  // namespace mstar
