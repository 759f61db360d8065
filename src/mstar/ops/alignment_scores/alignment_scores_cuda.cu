#include "mstar/ops/alignment_scores/alignment_scores_kernels.h"
#include "mstar/ops/alignment_scores/median.h"
#include "mstar/ops/attention/kv_layout_cuda.cuh"
#include "mstar/ops/cuda_kernel.cuh"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroupTokens = 8;  // that share a reading of the keys
constexpr int kMaxHeadDim = 128;
constexpr int kTile = 128;  // frames of a block that normalises

// What the three kernels of a head share.
struct Problem {
  const std::int32_t* offsets = nullptr;
  int num_rows = 0;
  const std::int32_t* frames = nullptr;
  int columns = 0;
  float* weights = nullptr;
  float* scores = nullptr;
  float share = 1.0f;
  __device__ int frames_at(int token) const { return min(max(frames[token], 1), columns); }
  __device__ float* weights_of(int token) const { return weights + static_cast<std::int64_t>(token) * columns; }
};

// Tokens [first, end) of one row; none where the block has nothing to do.
struct Group {
  int row = 0, first = 0, end = 0;
};

// Groups of one row after the other.
__device__ Group find_group(const Problem& p, int block) {
  for (int row = 0; row < p.num_rows; ++row) {
    const int begin = p.offsets[row], count = p.offsets[row + 1] - begin;
    const int groups = (count + kGroupTokens - 1) / kGroupTokens;
    if (block < groups) {
      const int first = begin + block * kGroupTokens;
      return {row, first, min(first + kGroupTokens, begin + count)};
    }
    block -= groups;
  }
  return {};
}

// One block for up to kGroupTokens tokens of a row: products with the keys and their softmax. Shared memory holds the
// products of all of them.
template <class Element, class Q>
__global__ void __launch_bounds__(kThreads)
    weigh(const Problem p, const Q* q, std::int64_t token_stride, int head, Slots slots, float scale) {
  await_inputs();
  constexpr int kCount = 16 / sizeof(Element);
  extern __shared__ float products[];  // [kGroupTokens][columns]
  __shared__ float queries[kGroupTokens][kMaxHeadDim];
  __shared__ float scratch[kWarps];
  const Group group = find_group(p, blockIdx.x);
  const int count = group.end - group.first, dim = slots.head_dim;
  if (count == 0) return;
  for (int i = threadIdx.x; i < kGroupTokens * dim; i += kThreads) {
    const int token = i / dim, d = i % dim;
    queries[token][d] = token < count ? widen(q[(group.first + token) * token_stride + head * dim + d]) : 0.0f;
  }
  __syncthreads();
  const int frames = p.frames_at(group.first);
  for (int frame = threadIdx.x; frame < frames; frame += kThreads) {
    const Element* const key = static_cast<const Element*>(slots.keys) + slots.at(group.row, frame, head);
    float sums[kGroupTokens] = {};
    for (int d = 0; d < dim; d += kCount) {
      float values[kCount];
      load_group(key + d, kCount, true, values);
#pragma unroll
      for (int token = 0; token < kGroupTokens; ++token)
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[token] = fmaf(queries[token][d + i], values[i], sums[token]);
    }
#pragma unroll
    for (int token = 0; token < kGroupTokens; ++token) products[token * p.columns + frame] = sums[token] * scale;
  }
  __syncthreads();
  for (int token = 0; token < count; ++token) {
    const float* const own = products + token * p.columns;
    float largest = -INFINITY;
    for (int frame = threadIdx.x; frame < frames; frame += kThreads) largest = fmaxf(largest, own[frame]);
    largest = block_max<kWarps>(largest, scratch);
    float sum = 0;
    for (int frame = threadIdx.x; frame < frames; frame += kThreads) sum += expf(own[frame] - largest);
    sum = block_sum<kWarps>(sum, scratch);
    float* const out = p.weights_of(group.first + token);
    for (int frame = threadIdx.x; frame < frames; frame += kThreads) out[frame] = expf(own[frame] - largest) / sum;
  }
}

// A thread for each frame of a row.
__global__ void __launch_bounds__(kTile) normalise(const Problem p) {
  await_inputs();
  const int row = blockIdx.y, frame = blockIdx.x * kTile + threadIdx.x;
  const int first = p.offsets[row], count = p.offsets[row + 1] - first;
  if (count == 0 || frame >= p.frames_at(first)) return;
  float* const column = p.weights_of(first) + frame;
  const auto at = [&](int token) -> float& { return column[static_cast<std::int64_t>(token) * p.columns]; };
  float sum = 0, squares = 0;
  for (int token = 0; token < count; ++token) sum += at(token);
  const float mean = sum / static_cast<float>(count);
  for (int token = 0; token < count; ++token) {
    const float off = at(token) - mean;
    squares = fmaf(off, off, squares);
  }
  const float deviation = sqrtf(squares / static_cast<float>(count));
  const float factor = deviation > 0 ? 1.0f / deviation : 0.0f;
  for (int token = 0; token < count; ++token) at(token) = (at(token) - mean) * factor;
}

// A block for a part of a token's frames.
__global__ void __launch_bounds__(kThreads) gather(const Problem p, bool adds) {
  await_inputs();
  constexpr int kReach = kAlignmentMedian / 2;
  const int token = blockIdx.y, frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= p.columns || token >= p.offsets[p.num_rows]) return;
  const int frames = p.frames_at(token);
  float* const out = p.scores + static_cast<std::int64_t>(token) * p.columns + frame;
  const float before = adds ? *out : 0.0f;
  if (frame >= frames) {
    *out = before;
    return;
  }
  const float* const values = p.weights_of(token);
  const auto at = [&](int offset) {
    const int from = abs(frame + offset);
    return values[from < frames ? from : 2 * (frames - 1) - from];
  };
  const float median =
      frames <= kReach ? values[frame] : median_of_seven(at(-3), at(-2), at(-1), at(0), at(1), at(2), at(3));
  *out = fmaf(p.share, median, before);
}

template <class Element, class Q>
void launch_weigh(OpContext& context, const AlignmentScoresArgs& args, const Problem& p, int head) {
  const std::size_t bytes = sizeof(float) * kGroupTokens * static_cast<std::size_t>(p.columns);
  cudaFuncSetAttribute(weigh<Element, Q>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  const Slots slots{.keys = args.kv.keys.pointer,
                    .values = nullptr,
                    .slots = args.kv.slots,
                    .lengths = nullptr,
                    .max_tokens = static_cast<int>(args.kv.keys.dim(1)),
                    .kv_heads = static_cast<int>(args.kv.keys.dim(2)),
                    .head_dim = static_cast<int>(args.kv.keys.dim(3))};
  const int groups = args.rows.num_tokens / kGroupTokens + args.rows.num_rows;
  launch_kernel(context, weigh<Element, Q>, groups, kThreads, bytes, p, args.q.data<const Q>(), args.q.stride(0), head,
                slots, args.scale);
}

}  // namespace

bool alignment_scores_cuda_fits(const OpContext&, const AlignmentScoresArgs& args) {
  constexpr std::int64_t kMaxColumns = 4096;  // of which the products lie in shared memory
  return args.kv.keys.dim(3) <= kMaxHeadDim && args.scores.dim(1) <= kMaxColumns;
}

Status alignment_scores_cuda(OpContext& context, const AlignmentScoresArgs& args) {
  const Problem p{.offsets = args.rows.offsets,
                  .num_rows = args.rows.num_rows,
                  .frames = args.frames.data<std::int32_t>(),
                  .columns = static_cast<int>(args.scores.dim(1)),
                  .weights = args.weights.data<float>(),
                  .scores = args.scores.data<float>(),
                  .share = args.share};
  bool adds = args.adds;
  for (const int head : args.heads) {
    MSTAR_TRY(with_float_type(args.q.dtype, [&](auto given) {
      return with_float_type(args.kv.keys.dtype, [&](auto element) {
        launch_weigh<decltype(element), decltype(given)>(context, args, p, head);
        return cuda_launch_status("alignment_scores");
      });
    }));
    launch_kernel(context, normalise, dim3((p.columns + kTile - 1) / kTile, p.num_rows), kTile, 0, p);
    launch_kernel(context, gather, dim3((p.columns + kThreads - 1) / kThreads, args.rows.num_tokens), kThreads, 0, p,
                  adds);
    MSTAR_TRY(cuda_launch_status("alignment_scores"));
    adds = true;
  }
  return {};
}

}  // namespace mstar
