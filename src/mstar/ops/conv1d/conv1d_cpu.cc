#include <algorithm>
#include <cstring>
#include <vector>

#include "mstar/ops/conv1d/conv1d_kernels.h"

namespace mstar {
namespace {

// [channels, frames] to [frames, channels], in squares that stay in cache.
void transpose(OpContext& context, const TensorView& x, float* to) {
  constexpr std::int64_t kSquare = 32;
  const std::int64_t channels = x.dim(0), frames = x.dim(1);
  context.parallel_for((frames + kSquare - 1) / kSquare, [&](std::int64_t tile, int) {
    const std::int64_t begin = tile * kSquare, end = std::min(begin + kSquare, frames);
    for (std::int64_t c0 = 0; c0 < channels; c0 += kSquare)
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t c = c0; c < std::min(c0 + kSquare, channels); ++c)
          to[t * channels + c] = x.data<float>()[c * x.stride(0) + t];
  });
}

// Output frames [first, last) as one linear over rows of 3 * channels that start `stride` frames apart.
Status convolve(OpContext& context, const Conv1dArgs& args, float* rows, std::int64_t row_stride, std::int64_t first,
                std::int64_t last) {
  if (first >= last) return {};
  LinearArgs call;
  call.x = TensorView(rows, DType::f32, {last - first, args.weight->num_inputs()}, context.device.id());
  call.x.strides[0] = row_stride;
  call.weight = args.weight;
  call.bias = args.bias;
  call.activation = args.activation;
  if (args.residual.pointer) call.residual = args.residual.slice(first, last);
  call.out = args.out.slice(first, last);
  return linear(context, call);
}

Status convolve_frames(OpContext& context, const Conv1dArgs& args, float* x, std::int64_t frames) {
  const std::int64_t channels = args.weight->num_inputs() / 3, out_frames = args.out.dim(0), stride = args.stride;
  const std::size_t frame_bytes = static_cast<std::size_t>(channels) * sizeof(float);
  // Output t reads frames t * stride - 1 .. t * stride + 1. Only the first and perhaps the last touch the padding:
  // those rows are built beside, all others are read where they lie.
  auto* edge = static_cast<float*>(context.arena.take(3 * frame_bytes));
  const auto convolve_edge = [&](std::int64_t t) {
    for (std::int64_t tap = 0; tap < 3; ++tap) {
      const std::int64_t frame = t * stride - 1 + tap;
      if (frame >= 0 && frame < frames) {
        std::memcpy(edge + tap * channels, x + frame * channels, frame_bytes);
      } else {
        std::memset(edge + tap * channels, 0, frame_bytes);
      }
    }
    return convolve(context, args, edge, 3 * channels, t, t + 1);
  };
  const bool last_is_edge = (out_frames - 1) * stride + 1 >= frames && out_frames > 1;
  const std::int64_t last = out_frames - (last_is_edge ? 1 : 0);
  MSTAR_TRY(convolve_edge(0));
  if (last > 1) MSTAR_TRY(convolve(context, args, x + (stride - 1) * channels, stride * channels, 1, last));
  if (last_is_edge) MSTAR_TRY(convolve_edge(out_frames - 1));
  return {};
}

}  // namespace

Status conv1d_cpu(OpContext& context, const Conv1dArgs& args) {
  const std::int64_t frames = args.x.dim(args.channels_first ? 1 : 0);
  const std::size_t mark = context.arena.mark();
  float* x = args.x.data<float>();
  if (args.channels_first) {
    x = static_cast<float*>(context.arena.take(args.x.bytes()));
    transpose(context, args.x, x);
  }
  const Status status = convolve_frames(context, args, x, frames);
  context.arena.rewind(mark);
  return status;
}

std::size_t conv1d_workspace_bytes(const Conv1dArgs& args, int num_threads) {
  if (args.weight->backend() == Backend::cuda)
    return static_cast<std::size_t>(args.out.dim(0) * args.weight->num_inputs()) *
               dtype_bytes(args.weight->storage().dtype()) +
           256 + linear_workspace_bytes(*args.weight, args.out.dim(0), num_threads);
  const auto edge = static_cast<std::size_t>(args.weight->num_inputs()) * sizeof(float) + 256;
  return (args.channels_first ? args.x.bytes() + 256 : 0) + edge +
         linear_workspace_bytes(*args.weight, args.out.dim(0), num_threads);
}

Result<LinearWeight> pack_conv1d(Device& device, const TensorView& weight, DType storage) {
  if (weight.shape.rank() != 3 || weight.dim(2) != 3 || !weight.contiguous())
    return bad_model("a convolution weight must be a contiguous [outputs, channels, 3], not " +
                     to_string(weight.shape));
  const std::size_t element = dtype_bytes(weight.dtype);
  const std::int64_t outputs = weight.dim(0), channels = weight.dim(1);
  std::vector<std::byte> reordered(weight.bytes());
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t tap = 0; tap < 3; ++tap)
        std::memcpy(reordered.data() + static_cast<std::size_t>((o * 3 + tap) * channels + c) * element,
                    weight.data<std::byte>() + static_cast<std::size_t>((o * channels + c) * 3 + tap) * element,
                    element);
  const TensorView matrix(reordered.data(), weight.dtype, {outputs, 3 * channels});
  return LinearWeight::pack(device, LinearSource{matrix, nullptr}, storage);
}

}  // namespace mstar
