#include <algorithm>
#include <cmath>

#include "mstar/ops/rope/rope_kernels.h"

namespace mstar {
namespace {

// Pair i of a head is (x[i * step], x[i * step + apart]). Products and sums are rounded one by one, as the reference's
// are.
void rotate(float* x, std::int64_t pairs, std::int64_t step, std::int64_t apart, const float* cosines,
            const float* sines) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[i * step], b = x[i * step + apart];
    x[i * step] = a * cosines[i] - b * sines[i];
    x[i * step + apart] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

Status rope_cpu(OpContext& context, const RopeArgs& args) {
  const std::int64_t pairs = args.inverse_frequencies.dim(0), heads = args.x.dim(1);
  const auto* const axes = args.pair_axes.data<std::int32_t>();
  const std::size_t mark = context.arena.mark();
  auto* scratch = static_cast<float*>(context.arena.take(rope_workspace_bytes(2 * pairs, context.num_threads()) - 256));
  constexpr std::int64_t kTokensAtOnce = 8;
  const std::int64_t tokens = args.x.dim(0);
  context.parallel_for((tokens + kTokensAtOnce - 1) / kTokensAtOnce, [&](std::int64_t tile, int thread) {
    float* cosines = scratch + thread * 2 * pairs;
    float* sines = cosines + pairs;
    for (std::int64_t t = tile * kTokensAtOnce; t < std::min(tokens, (tile + 1) * kTokensAtOnce); ++t) {
      const std::int32_t* const positions = args.positions.data<std::int32_t>() + t;
      for (std::int64_t i = 0; i < pairs; ++i) {
        const std::int64_t along = axes ? axes[i] * args.positions.stride(0) : 0;
        const float angle = static_cast<float>(positions[along]) * args.inverse_frequencies.data<float>()[i];
        cosines[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * args.magnitude;
        sines[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * args.magnitude;
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        float* x = args.x.data<float>() + t * args.x.stride(0) + head * args.x.stride(1);
        if (args.interleaved) {
          rotate(x, pairs, 2, 1, cosines, sines);
        } else {
          rotate(x, pairs, 1, pairs, cosines, sines);
        }
      }
    }
  });
  context.arena.rewind(mark);
  return {};
}

std::size_t rope_workspace_bytes(std::int64_t rotary, int num_threads) {
  return static_cast<std::size_t>(rotary) * sizeof(float) * static_cast<std::size_t>(num_threads) + 256;
}

}  // namespace mstar
