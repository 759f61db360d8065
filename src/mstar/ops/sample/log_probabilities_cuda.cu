// The log-probability of a token and the likeliest ones, one after the other, by one cluster.
#include "mstar/ops/sample/sample_cluster_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;

__device__ std::uint64_t largest_of_cluster(Cluster& cluster, std::uint64_t value) {
  cluster.exchange(cluster.largest_of_block(value), 0);
  std::uint64_t largest = 0;
  for (int rank = 0; rank < kClusterBlocks; ++rank)
    largest = largest > cluster.heard(rank, 0) ? largest : cluster.heard(rank, 0);
  return largest;
}

__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kClusterThreads)
    report(float* logits, int vocabulary, bool aligned, int token, const std::int32_t* drawn, int num_top, float* out) {
  await_inputs();
  extern __shared__ __align__(16) unsigned char shared[];
  Cluster cluster(*reinterpret_cast<ClusterMemory*>(shared));
  const RowPart part(reinterpret_cast<float*>(shared + sizeof(ClusterMemory)), logits, vocabulary, aligned, 0,
                     cluster.rank());
  // The largest key below `bound`, 0 when there is none.
  const auto next = [&](std::uint64_t bound) {
    std::uint64_t largest = 0;
    for (int i = threadIdx.x; i < part.count; i += kClusterThreads) {
      const std::uint64_t key = order_key(part.logits[i], part.begin + i);
      if (key < bound && key > largest) largest = key;
    }
    return largest_of_cluster(cluster, largest);
  };
  std::uint64_t key = next(~std::uint64_t{0});
  const float largest = logit_of_key(key);
  float own = 0;
  if (largest != -INFINITY)
    for (int i = threadIdx.x; i < part.count; i += kClusterThreads) own += expf(part.logits[i] - largest);
  cluster.exchange(static_cast<std::uint64_t>(__double_as_longlong(cluster.sum_of_block(static_cast<double>(own)))), 0);
  double sum = 0;
  for (int rank = 0; rank < kClusterBlocks; ++rank) sum += cluster.heard_number(rank, 0);
  const double log_sum = largest == -INFINITY ? 0.0 : static_cast<double>(largest) + log(sum);
  const bool writes = cluster.rank() == 0 && threadIdx.x == 0;
  if (writes) {
    const int id = min(max(drawn ? *drawn : token, 0), vocabulary - 1);
    out[0] = static_cast<float>(id);
    out[1] = static_cast<float>(static_cast<double>(logits[id]) - log_sum);
  }
  for (int i = 1; i <= num_top; ++i) {
    if (i > 1) key = next(key);
    if (!writes) continue;
    out[2 * i] = static_cast<float>(id_of_key(key));
    out[2 * i + 1] = static_cast<float>(static_cast<double>(logit_of_key(key)) - log_sum);
  }
  cluster.sync();  // nobody leaves while others read its memory
}

std::size_t shared_bytes(std::int64_t vocabulary) {
  return sizeof(ClusterMemory) + static_cast<std::size_t>(cluster_share(static_cast<int>(vocabulary))) * sizeof(float);
}

}  // namespace

bool log_probabilities_cuda_fits(const OpContext&, const LogProbArgs& args) {
  return args.logits.dim(0) <= kMaxDrawVocabularyCuda;
}

Status log_probabilities_cuda(OpContext& context, const LogProbArgs& args) {
  const auto vocabulary = args.logits.dim(0);
  const std::size_t bytes = shared_bytes(vocabulary);
  cudaFuncSetAttribute(report, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  launch_kernel(context, report, kClusterBlocks, kClusterThreads, bytes, args.logits.data<float>(),
                static_cast<int>(vocabulary), reinterpret_cast<std::uintptr_t>(args.logits.pointer) % 16 == 0,
                args.token, args.drawn, static_cast<int>(std::min<std::int64_t>(args.out.dim(0) - 1, vocabulary)),
                args.out.data<float>());
  return cuda_launch_status("log_probabilities");
}

}  // namespace mstar
