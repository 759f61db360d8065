#include <algorithm>

#include "mstar/ops/linear/linear_kernels.h"
#include "mstar/ops/linear/linear_stream.h"
#include "mstar/ops/linear/linear_stream_cuda.cuh"
#include "mstar/ops/linear/linear_table.h"
#include "mstar/ops/tensor_map_cuda.h"

namespace mstar {
namespace {

using namespace cuda;

// Two blocks a multiprocessor where that fits (227 KiB for both, 1 KiB of each is the system's): the next product's
// first stages are on their way while this one is finished.
constexpr int kSharedOfPair = (227 - 2) * 1024 / 2;

template <class Element, int kFragments, int kTokenTiles, class Shape>
Status launch(OpContext& context, StreamProblem& p, const TensorView& x, const LinearWeight& weight) {
  using Layout = StreamLayout<kFragments, kTokenTiles, Shape>;
  const std::int64_t k = weight.num_inputs();
  const bool described = p.gated
                             ? describe_gated_rows(weight.rows(), p.gated, k, x.dtype, Layout::kOutputs / 16, p.weight)
                             : describe_rows(weight.rows(), p.n, k, k, x.dtype, Layout::kOutputs, p.weight);
  if (!described || !describe_rows(x.pointer, p.m, k, x.stride(0), x.dtype, Layout::kTokens, p.x))
    return internal_error("linear: the driver has no tensor maps, or refuses one");
  const auto kernel = stream_weight<Element, kFragments, kTokenTiles, Shape>;
  const int outputs = (p.gated ? p.gated : p.n), tile = Layout::kOutputs / (p.gated ? 2 : 1);
  const int shared_bytes = Layout::shared_bytes(p.split, p.alone);
  p.num_tiles = (outputs + tile - 1) / tile;
  int num_processors = 0;
  if (cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, context.device.id().index) != cudaSuccess)
    return cuda_launch_status("linear");
  const int turns = (p.m + Layout::kTokens - 1) / Layout::kTokens;
  // One wave in which all blocks have as many tiles, or one less.
  const int room = std::max(1, num_processors * (shared_bytes <= kSharedOfPair ? 2 : 1) / turns);
  const int rounds = p.split > 1 ? 1 : (p.num_tiles + room - 1) / room;
  const int units = (p.num_tiles + rounds - 1) / rounds;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  // So that there is room for two blocks.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(units * p.split), static_cast<unsigned>(turns));
  const int factor_makers = (p.factors.squares ? 1 : 0) + (p.factors.sums ? 1 : 0);
  config.blockDim = dim3(static_cast<unsigned>(Layout::kThreads + factor_makers * kWarp));
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

// One fragment: two groups and as many stages as leave room for two blocks. Two fragments: all of a multiprocessor.
template <class Element, bool kLayerNorms = false>
Status launch_for_tokens(OpContext& context, StreamProblem& p, int fragments, const TensorView& x,
                         const LinearWeight& weight) {
  // Two groups have another order of sums than one: a weight that keeps one order goes in turns of 32 rows.
  const bool one_order = weight.keeps_one_order();
  if (fragments == 1 || one_order) {
    if (p.m <= 8) return launch<Element, 1, 1, StreamShape<2, 2, 6, 4, kLayerNorms>>(context, p, x, weight);
    if (p.m <= 16) return launch<Element, 1, 2, StreamShape<2, 2, 4, 8, kLayerNorms>>(context, p, x, weight);
    if (p.m <= 32 || one_order)
      return p.split == 1 ? launch<Element, 1, 4, StreamShape<2, 2, 4, 4, kLayerNorms>>(context, p, x, weight)
                          : launch<Element, 1, 4, StreamShape<2, 2, 4, 2, kLayerNorms>>(context, p, x, weight);
    if (p.m <= 48) return launch<Element, 1, 6, StreamShape<1, 2, 3, 2, kLayerNorms>>(context, p, x, weight);
    return launch<Element, 1, 8, StreamShape<1, 2, 3, 2, kLayerNorms>>(context, p, x, weight);
  }
  if (p.m <= 8) return launch<Element, 2, 1, StreamShape<1, 2, 6, 6, kLayerNorms>>(context, p, x, weight);
  if (p.m <= 16) return launch<Element, 2, 2, StreamShape<1, 2, 5, 5, kLayerNorms>>(context, p, x, weight);
  if (p.m <= 32) return launch<Element, 2, 4, StreamShape<1, 2, 4, 4, kLayerNorms>>(context, p, x, weight);
  if (p.m <= 48) return launch<Element, 2, 6, StreamShape<1, 2, 4, 4, kLayerNorms>>(context, p, x, weight);
  return launch<Element, 2, 8, StreamShape<1, 2, 4, 3, kLayerNorms>>(context, p, x, weight);
}

RowFactors factors_of(const RowSquares& squares) {
  if (!squares.parts.pointer) return {};
  return {.squares = squares.parts.data<float>(),
          .sums = squares.sums.data<float>(),
          .weighted_gains = squares.sums.pointer ? squares.weighted_gains.data<float>() : nullptr,
          .stride = static_cast<int>(squares.parts.stride(0)),
          .num_parts = static_cast<int>(squares.parts.dim(0)),
          .inverse_width = 1.0f / static_cast<float>(squares.width),
          .epsilon = squares.epsilon};
}

LeftNorm left_norm_of(const PassedNorm& passed) {
  if (!passed.gains.pointer) return {};
  return {.gain = passed.gains.data<float>(),
          .offset = passed.gain_offset,
          .rows = float_rows_of(passed.rows),
          .squares = passed.squares.data<float>(),
          .sums = passed.sums.data<float>(),
          .squares_stride = static_cast<int>(passed.squares.stride(0))};
}

Status stream(OpContext& context, StreamProblem& p, const LinearWeight& weight, const TensorView& x,
              const TensorView& residual, const TensorView& out, bool gated, StreamCut cut) {
  if (!can_stream(weight, x)) return internal_error("linear: a norm is passed to what cannot stream");
  p.m = static_cast<int>(x.dim(0));
  p.n = static_cast<int>(weight.num_outputs());
  p.num_blocks = static_cast<int>((weight.num_inputs() + 63) / 64);
  p.split = cut.split;
  while ((1 << p.split_log) < cut.split) ++p.split_log;
  p.gated = gated ? p.n / 2 : 0;
  p.in_fours =
      out.dim(1) % 4 == 0 && starts_rows_on_16_bytes(out) && (!residual.pointer || starts_rows_on_16_bytes(residual));
  const bool layer_norms = p.factors.sums || p.left.sums;
  const bool has_vectors = p.epilogue.bias || p.factors.weighted_gains;
  p.alone = cut.split == 1 && !(has_vectors && (p.in_fours || !layer_norms)) &&
            p.epilogue.activation == Activation::none && !p.left.gain &&
            (out.dtype == DType::f32 || out.dtype == x.dtype);
  if (p.left.gain && !p.in_fours) return internal_error("linear: a norm of rows that are not on 16 bytes");
  if (reinterpret_cast<std::uintptr_t>(p.factors.weighted_gains) % 16 != 0)
    return internal_error("linear: weighted gains that are not on 16 bytes");
  if (layer_norms && x.dtype != DType::bf16) return internal_error("linear: a layer norm is passed as bf16");
  if (x.dtype == DType::f16) return launch_for_tokens<__half>(context, p, cut.fragments, x, weight);
  return layer_norms ? launch_for_tokens<__nv_bfloat16, true>(context, p, cut.fragments, x, weight)
                     : launch_for_tokens<__nv_bfloat16>(context, p, cut.fragments, x, weight);
}

}  // namespace

StreamCut stream_cut(std::int64_t num_rows, std::int64_t num_outputs, std::int64_t num_inputs) {
  // Two blocks on each of 132 multiprocessors, and at least two stages of 64 k for each.
  constexpr std::int64_t kMostBlocks = 264, kLeastSteps = 2;
  const std::int64_t tiles = (num_outputs + 63) / 64, steps = (num_inputs + 63) / 64;
  StreamCut cut;
  while (cut.split < 8 && tiles * cut.split * 2 <= kMostBlocks && steps >= 2 * cut.split * kLeastSteps) cut.split *= 2;
  // Wide tiles halve the passes of x through the L2 cache, which matter where x is as large as a tile of W.
  cut.fragments = num_rows > 32 && cut.split == 1 && tiles >= 2 * kMostBlocks ? 2 : 1;
  return cut;
}

std::int64_t square_parts(std::int64_t num_outputs, StreamCut cut) {
  const std::int64_t tile = 64 * cut.fragments;
  return (num_outputs + tile - 1) / tile * cut.split;
}

bool can_stream(const LinearWeight& weight, const TensorView& x) {
  if (!(weight.storage() == DType::bf16) && !(weight.storage() == DType::f16)) return false;
  return weight.storage() == x.dtype && weight.num_inputs() % 8 == 0 && starts_rows_on_16_bytes(x) &&
         (x.dim(0) == 1 || x.stride(0) >= x.dim(1));
}

Status stream_linear(OpContext& context, const LinearArgs& args, StreamCut cut) {
  StreamProblem p;
  p.factors = factors_of(args.squares);
  p.epilogue = epilogue_of(args);
  p.left = left_norm_of(args.passed);
  if (p.left.gain && (args.passed.squares.dim(0) != square_parts(args.weight->num_outputs(), cut) ||
                      !starts_rows_on_16_bytes(args.passed.rows) ||
                      reinterpret_cast<std::uintptr_t>(args.passed.gains.pointer) % 16 != 0))
    return internal_error("linear: a norm in " + std::to_string(args.passed.squares.dim(0)) + " parts");
  return stream(context, p, *args.weight, args.x, args.residual, args.out, false, cut);
}

Status stream_gated_linear(OpContext& context, const GatedLinearArgs& args, StreamCut cut) {
  StreamProblem p;
  p.factors = factors_of(args.squares);
  p.epilogue.out = float_rows_of(args.out);
  return stream(context, p, *args.weight, args.x, {}, args.out, true, cut);
}

namespace {

// A weight that keeps one order always streams.
bool streams(const LinearWeight& weight, const TensorView& x, DType out) {
  if (!can_stream(weight, x)) return false;
  if (weight.keeps_one_order()) return true;
  if (x.dim(0) > kStreamRows) return false;
  return streams_faster(x.dim(0), weight.num_outputs(), weight.num_inputs(), x.dtype, out);
}

bool gated_streams(const LinearWeight& weight, const TensorView& x, DType out) {
  // Of shapes that were not measured: the library's way takes a kernel more, which few rows feel.
  constexpr std::int64_t kFewRows = 32;
  if (!can_stream(weight, x) || weight.num_outputs() % 16 != 0) return false;
  if (weight.keeps_one_order()) return true;
  const std::int64_t m = x.dim(0);
  if (m > kStreamRows) return false;
  const LinearChoice* const choice = linear_choice(m, weight.num_outputs(), weight.num_inputs(), x.dtype, out);
  return choice ? choice->streams() : m <= kFewRows;
}

StreamCut cut_of(const LinearWeight& weight, const TensorView& x, DType out) {
  const std::int64_t m = x.dim(0), n = weight.num_outputs(), k = weight.num_inputs();
  const LinearChoice* const choice = weight.keeps_one_order() ? nullptr : linear_choice(m, n, k, x.dtype, out);
  if (!choice || !choice->streams()) return stream_cut(m, n, k);
  return {.fragments = choice->fragments, .split = choice->split};
}

// Whether x, once normed, goes through the streaming kernel.
bool reads_passed_norm(const PassedNormReader& reader, std::int64_t num_rows, std::int64_t width) {
  const LinearWeight& weight = *reader.weight;
  if (weight.num_inputs() != width || weight.keeps_one_order() || !(weight.storage() == DType::bf16)) return false;
  const TensorView x(nullptr, DType::bf16, {num_rows, width});
  if (reader.gated) return gated_streams(weight, x, reader.out);
  // Rows that the library refuses come here in any case.
  const bool is_refused = static_cast<std::size_t>(weight.num_outputs()) * dtype_bytes(reader.out) % 16 != 0;
  return streams(weight, x, reader.out) || (is_refused && can_stream(weight, x));
}

}  // namespace

std::int64_t linear_cuda_passed_norm_parts(const OpContext&, const LinearArgs& args, const PassedNormReader& reader) {
  static_assert(kMostPassedRows <= kStreamRows);
  const LinearWeight& weight = *args.weight;
  const std::int64_t m = args.x.dim(0), n = weight.num_outputs();
  // A product of a large weight has no time to spare for what it passes: its memory is busy all along.
  constexpr std::int64_t kMostElements = std::int64_t{16} << 20;
  if (reader.weight->num_outputs() * reader.weight->num_inputs() > kMostElements &&
      n * weight.num_inputs() > kMostElements)
    return 0;
  if (m == 0 || m > kMostPassedRows || n % 8 != 0 || weight.keeps_one_order()) return 0;
  if (args.x.dtype != DType::bf16 || args.out.dtype != DType::f32 || !starts_rows_on_16_bytes(args.out)) return 0;
  if (args.residual.pointer && !starts_rows_on_16_bytes(args.residual)) return 0;
  if (!streams(weight, args.x, args.out.dtype) || !reads_passed_norm(reader, m, n)) return 0;
  const std::int64_t parts = square_parts(n, cut_of(weight, args.x, args.out.dtype));
  return parts <= most_square_parts(n) ? parts : 0;
}

bool linear_cuda_stream_fits(const OpContext&, const LinearArgs& args) {
  return streams(*args.weight, args.x, args.out.dtype);
}

// What the library refuses, as rows of 51866 logits, is faster here than in the kernel for any rows.
bool linear_cuda_can_stream(const OpContext&, const LinearArgs& args) { return can_stream(*args.weight, args.x); }

Status linear_cuda_stream(OpContext& context, const LinearArgs& args) {
  return stream_linear(context, args, cut_of(*args.weight, args.x, args.out.dtype));
}

bool gated_linear_cuda_stream_fits(const OpContext&, const GatedLinearArgs& args) {
  return gated_streams(*args.weight, args.x, args.out.dtype);
}

Status gated_linear_cuda_stream(OpContext& context, const GatedLinearArgs& args) {
  return stream_gated_linear(context, args, cut_of(*args.weight, args.x, args.out.dtype));
}

}  // namespace mstar
