#include <algorithm>

#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/linear/linear_stream.h"
#include "mstar/ops/linear/linear_stream_cuda.cuh"
#include "mstar/ops/linear/linear_table.h"

namespace mstar {
namespace {

using namespace cuda;

// Two blocks a multiprocessor where that fits (227 KiB for both, 1 KiB of each is the system's).
constexpr int kSharedOfPair = (227 - 2) * 1024 / 2;

template <class Element, int kFragments, int kTokenTiles, int kStages>
Status launch(OpContext& context, StreamProblem& p) {
  using Layout = StreamLayout<kFragments, kTokenTiles, kStages>;
  const auto kernel = stream_weight<Element, kFragments, kTokenTiles, kStages>;
  const int outputs = (p.gated ? p.gated : p.n), tile = Layout::kOutputs / (p.gated ? 2 : 1);
  const int shared_bytes = Layout::shared_bytes(p.split);
  p.num_tiles = (outputs + tile - 1) / tile;
  int num_processors = 0;
  if (cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, context.device.id().index) != cudaSuccess)
    return cuda_launch_status("linear");
  // One wave; a block takes tiles in turn where there are more.
  const int turns = (p.m + Layout::kTokens - 1) / Layout::kTokens;
  const int room = num_processors * (shared_bytes <= kSharedOfPair ? 2 : 1) / (p.split * turns);
  const int units = std::max(1, std::min(p.num_tiles, room));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  // So that there is room for two blocks.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(units * p.split), static_cast<unsigned>(turns));
  config.blockDim = dim3(Layout::kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream_of(context);
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (p.split > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(p.split);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchKernelEx(&config, kernel, p);
  return cuda_launch_status("linear");
}

// The ring's depth: 56 KB of W under way in a block, or what two blocks a multiprocessor leave room for.
template <class Element>
Status launch_for_tokens(OpContext& context, StreamProblem& p, int fragments) {
  if (p.m <= 8) return launch<Element, 1, 1, 8>(context, p);
  if (p.m <= 16) return launch<Element, 1, 2, 8>(context, p);
  if (p.m <= 32) {
    if (fragments == 1) return launch<Element, 1, 4, 7>(context, p);
    return launch<Element, 2, 4, 4>(context, p);
  }
  if (fragments == 1) return launch<Element, 1, 8, 5>(context, p);
  return launch<Element, 2, 8, 5>(context, p);
}

Status stream(OpContext& context, const LinearWeight& weight, const TensorView& x, const Epilogue& epilogue, bool gated,
              StreamCut cut) {
  StreamProblem p;
  p.weight = weight.rows();
  p.x = float_rows_of(x);
  p.epilogue = epilogue;
  p.m = static_cast<int>(x.dim(0));
  p.n = static_cast<int>(weight.num_outputs());
  p.k = static_cast<int>(weight.num_inputs());
  p.split = cut.split;
  while ((1 << p.split_log) < cut.split) ++p.split_log;
  p.gated = gated ? p.n / 2 : 0;
  if (x.dtype == DType::f16) return launch_for_tokens<__half>(context, p, cut.fragments);
  return launch_for_tokens<__nv_bfloat16>(context, p, cut.fragments);
}

}  // namespace

StreamCut stream_cut(std::int64_t num_rows, std::int64_t num_outputs, std::int64_t num_inputs) {
  // Two blocks on each of 132 multiprocessors, and at least two stages of 64 k for each.
  constexpr std::int64_t kMostBlocks = 264, kLeastSteps = 2;
  const std::int64_t tiles = (num_outputs + 63) / 64, steps = (num_inputs + 63) / 64;
  StreamCut cut;
  while (cut.split < 8 && tiles * cut.split * 2 <= kMostBlocks && steps >= 2 * cut.split * kLeastSteps) cut.split *= 2;
  // Wide tiles halve the passes of x through the L2 cache, which matter where x is as large as a tile of W.
  cut.fragments = num_rows > 32 && tiles * cut.split >= 160 ? 2 : 1;
  return cut;
}

bool can_stream(const LinearWeight& weight, const TensorView& x) {
  if (!(weight.storage() == DType::bf16) && !(weight.storage() == DType::f16)) return false;
  return weight.storage() == x.dtype && weight.num_inputs() % 8 == 0 && starts_rows_on_16_bytes(x);
}

Status stream_linear(OpContext& context, const LinearArgs& args, StreamCut cut) {
  return stream(context, *args.weight, args.x, epilogue_of(args), false, cut);
}

Status stream_gated_linear(OpContext& context, const GatedLinearArgs& args, StreamCut cut) {
  Epilogue epilogue;
  epilogue.out = float_rows_of(args.out);
  return stream(context, *args.weight, args.x, epilogue, true, cut);
}

namespace {

// A weight that keeps one order always streams.
bool streams(const LinearWeight& weight, const TensorView& x, DType out) {
  if (!can_stream(weight, x)) return false;
  if (weight.keeps_one_order()) return true;
  if (x.dim(0) > kStreamRows) return false;
  return streams_faster(x.dim(0), weight.num_outputs(), weight.num_inputs(), x.dtype, out);
}

StreamCut cut_of(const LinearWeight& weight, const TensorView& x, DType out) {
  const std::int64_t m = x.dim(0), n = weight.num_outputs(), k = weight.num_inputs();
  const LinearChoice* const choice = weight.keeps_one_order() ? nullptr : linear_choice(m, n, k, x.dtype, out);
  if (!choice || !choice->streams()) return stream_cut(m, n, k);
  return {.fragments = choice->fragments, .split = choice->split};
}

}  // namespace

bool linear_cuda_stream_fits(const OpContext&, const LinearArgs& args) {
  return streams(*args.weight, args.x, args.out.dtype);
}

// What the library refuses, as rows of 51866 logits, is faster here than in the kernel for any rows.
bool linear_cuda_can_stream(const OpContext&, const LinearArgs& args) { return can_stream(*args.weight, args.x); }

Status linear_cuda_stream(OpContext& context, const LinearArgs& args) {
  return stream_linear(context, args, cut_of(*args.weight, args.x, args.out.dtype));
}

// The library's way takes a kernel more, about 2.8 us on an H200: with it ours is the faster one up to 8 rows and the
// slower one from 16 on (gate and up of Qwen3.5-0.8B: 8.2 against 6.3 + 2.8 us, 9.5 against 6.2 + 2.9).
// Of large weights the library's product alone is faster by more than that (Qwen3.5-9B: 68 against 50 + 3 us).
constexpr std::int64_t kGatedStreamRows = 8;
constexpr std::size_t kGatedStreamBytes = std::size_t{32} << 20;

bool gated_linear_cuda_stream_fits(const OpContext&, const GatedLinearArgs& args) {
  const bool pays = args.x.dim(0) <= kGatedStreamRows && args.weight->bytes() <= kGatedStreamBytes;
  return (pays || args.weight->keeps_one_order()) && can_stream(*args.weight, args.x);
}

Status gated_linear_cuda_stream(OpContext& context, const GatedLinearArgs& args) {
  return stream_gated_linear(context, args, cut_of(*args.weight, args.x, args.out.dtype));
}

}  // namespace mstar
