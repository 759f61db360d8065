#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/first_frames/first_frames_kernels.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kMaxTokens = 1024;      // threads of a block
constexpr int kMaxBytes = 200 << 10;  // of shared memory
constexpr int kStepsOfWord = 16;      // two bits each
enum Step : std::uint32_t { kBoth = 0, kToken = 1, kFrame = 2 };

struct Problem {
  const float* scores = nullptr;
  int columns = 0;
  const std::int32_t* offsets = nullptr;
  const std::int32_t* frames = nullptr;
  int lead = 0;
  int words = 0;  // of a token's steps
  std::int32_t* out = nullptr;
};

// One block a row, one thread a token: all cells of a diagonal at once, from left above to right below. Thread t is at
// frame d - t in round d, so what it needs of the token before it was made one and two rounds ago.
__global__ void __launch_bounds__(kMaxTokens) find_way(const Problem p) {
  await_inputs();
  extern __shared__ std::uint32_t steps[];  // [tokens][words]
  __shared__ float costs[2][kMaxTokens];    // of a round, by token
  const int begin = p.offsets[blockIdx.x], token = threadIdx.x;
  const int count = min(p.offsets[blockIdx.x + 1] - begin - p.lead - 1, static_cast<int>(blockDim.x));
  if (count <= 0) return;
  const int frames = min(max(p.frames[begin], 1), p.columns);
  const bool is_mine = token < count;
  const float* const scores = p.scores + static_cast<std::int64_t>(begin + p.lead + token) * p.columns;
  float corner = token == 0 ? 0.0f : INFINITY, left = INFINITY;
  float next = is_mine ? scores[0] : 0.0f;
  std::uint32_t word = 0;
  for (int round = 0; round < count + frames - 1; ++round) {
    const int frame = round - token;
    if (is_mine && frame >= 0 && frame < frames) {
      const float score = next;
      if (frame + 1 < frames) next = scores[frame + 1];
      const float above = token == 0 ? INFINITY : costs[(round + 1) % 2][token - 1];
      float cost = left;
      std::uint32_t step = kFrame;
      if (corner < above && corner < left) {
        cost = corner;
        step = kBoth;
      } else if (above < corner && above < left) {
        cost = above;
        step = kToken;
      }
      corner = above;
      left = cost - score;
      costs[round % 2][token] = left;
      word |= step << (2 * (frame % kStepsOfWord));
      if (frame % kStepsOfWord == kStepsOfWord - 1 || frame + 1 == frames) {
        steps[token * p.words + frame / kStepsOfWord] = word;
        word = 0;
      }
    }
    __syncthreads();
  }
  if (token != 0) return;
  std::int32_t* const out = p.out + begin - static_cast<int>(blockIdx.x) * (p.lead + 1);
  for (int t = count - 1, f = frames - 1;;) {
    out[t] = f;
    if (t == 0 && f == 0) return;
    std::uint32_t step = (steps[t * p.words + f / kStepsOfWord] >> (2 * (f % kStepsOfWord))) & 3u;
    if (t == 0) {
      step = kFrame;
    } else if (f == 0) {
      step = kToken;
    }
    t -= step != kFrame;
    f -= step != kToken;
  }
}

int words_of(const FirstFramesArgs& args) {
  return (static_cast<int>(args.scores.dim(1)) + kStepsOfWord - 1) / kStepsOfWord;
}
// The most that a row places.
int threads_of(const FirstFramesArgs& args) {
  const int placed = args.longest - args.lead - 1;
  return placed <= 0 ? kWarp : (placed + kWarp - 1) / kWarp * kWarp;
}
std::int64_t bytes_of(const FirstFramesArgs& args) {
  return static_cast<std::int64_t>(threads_of(args)) * words_of(args) *
         static_cast<std::int64_t>(sizeof(std::uint32_t));
}

}  // namespace

bool first_frames_cuda_fits(const OpContext&, const FirstFramesArgs& args) {
  return threads_of(args) <= kMaxTokens && bytes_of(args) <= kMaxBytes;
}

Status first_frames_cuda(OpContext& context, const FirstFramesArgs& args) {
  const auto bytes = static_cast<std::size_t>(bytes_of(args));
  cudaFuncSetAttribute(find_way, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  const Problem p{.scores = args.scores.data<float>(),
                  .columns = static_cast<int>(args.scores.dim(1)),
                  .offsets = args.rows.offsets,
                  .frames = args.frames.data<std::int32_t>(),
                  .lead = args.lead,
                  .words = words_of(args),
                  .out = args.out.data<std::int32_t>()};
  launch_kernel(context, find_way, args.rows.num_rows, threads_of(args), bytes, p);
  return cuda_launch_status("first_frames");
}

}  // namespace mstar
