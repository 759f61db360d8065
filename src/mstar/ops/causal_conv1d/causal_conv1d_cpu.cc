#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/ops/causal_conv1d/causal_conv1d_cpu.cc"
#include <algorithm>
#include <cstring>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "mstar/ops/causal_conv1d/causal_conv1d_kernels.h"
#include "mstar/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

// One token's outputs of `count` channels; inputs[j] and weight + j * channels are those of tap j.
HWY_INLINE void convolve(const float* const* inputs, std::int64_t taps, const float* weight, std::int64_t channels,
                         Activation activation, std::int64_t count, float* out) {
  for_lanes(count, [&](std::int64_t i, int lanes) HWY_ATTR {
    V sum = hn::Mul(load_up_to(inputs[0] + i, lanes), load_up_to(weight + i, lanes));
    for (std::int64_t j = 1; j < taps; ++j)
      sum = hn::MulAdd(load_up_to(inputs[j] + i, lanes), load_up_to(weight + j * channels + i, lanes), sum);
    store_up_to(activated(activation, sum), out + i, lanes);
  });
}

// Channels [first, first + count) of one row, and their state.
void convolve_row(const CausalConv1dArgs& args, std::int64_t row, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = args.rows.offsets[row], tokens = args.rows.offsets[row + 1] - begin;
  if (tokens == 0) return;
  const std::int64_t channels = args.x.dim(1), taps = args.weight.dim(0), past = taps - 1;
  float* state = args.state.data<float>() + args.slots[row] * args.state.stride(0) + first;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  const bool moved = args.read_slots && args.read_slots[row] != args.slots[row];
  const float* const old =
      moved ? args.state.data<float>() + args.read_slots[row] * args.state.stride(0) + first : nullptr;
  for (std::int64_t j = 0; j < past; ++j) {
    if (args.positions[begin] == 0) {
      std::memset(state + j * channels, 0, bytes);
    } else if (moved) {
      std::memcpy(state + j * channels, old + j * channels, bytes);
    }
  }
  // Input `t` of the row; those before it are its state.
  const auto input = [&](std::int64_t t) -> const float* {
    return t < 0 ? state + (past + t) * channels : args.x.data<float>() + (begin + t) * args.x.stride(0) + first;
  };
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* inputs[kMaxConvTaps];
    for (std::int64_t j = 0; j < taps; ++j) inputs[j] = input(t - past + j);
    convolve(inputs, taps, args.weight.data<float>() + first, channels, args.activation, count,
             args.out.data<float>() + (begin + t) * args.out.stride(0) + first);
  }
  const auto keep = [&](std::int64_t end, float* to) {
    for (std::int64_t j = 0; j < past; ++j) std::memcpy(to + j * channels, input(end - past + j), bytes);
  };
  // In this order a short row moves what it keeps of the old state before that is written over.
  if (args.kept.tokens && args.kept.tokens[row] > 0)
    keep(args.kept.tokens[row], args.state.data<float>() + args.kept.slots[row] * args.state.stride(0) + first);
  keep(tokens, state);
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(convolve_row);

Status causal_conv1d_cpu(OpContext& context, const CausalConv1dArgs& args) {
  if (args.rows.num_rows == 0) return {};
  // Tiles of about 16k elements, so that a few short rows stay on the calling thread.
  constexpr std::int64_t kTileElements = 16384, kLeastChannels = 256;
  const std::int64_t channels = args.x.dim(1), num_rows = args.rows.num_rows;
  const std::int64_t row_tokens = std::max<std::int64_t>(1, args.rows.num_tokens / num_rows);
  const std::int64_t width = std::min(channels, std::max(kLeastChannels, kTileElements / row_tokens / 16 * 16));
  const std::int64_t tiles_per_row = (channels + width - 1) / width;
  context.parallel_for(num_rows * tiles_per_row, [&](std::int64_t tile, int) {
    const std::int64_t first = tile % tiles_per_row * width;
    HWY_DYNAMIC_DISPATCH(convolve_row)(args, tile / tiles_per_row, first, std::min(width, channels - first));
  });
  return {};
}

}  // namespace mstar
#endif
