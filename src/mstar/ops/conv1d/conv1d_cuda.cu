// A convolution as one product: the three frames of every output side by side, in the weight's dtype.
#include "mstar/ops/conv1d/conv1d_kernels.h"
#include "mstar/ops/cuda_kernel.cuh"
#include "mstar/ops/head_rows.h"

namespace mstar {
namespace {

using namespace cuda;

constexpr int kSquare = 32;
constexpr int kThreads = 256;

struct Frames {
  const void* data = nullptr;
  std::int64_t frame_stride = 0, channel_stride = 0;
  int frames = 0, channels = 0;
};

// Of x with its frames side by side: a square of 32 channels and 32 outputs goes through shared memory, so that both
// sides are read and written along their rows. Blocks (outputs, channels, tap), 32 x 8 threads.
template <class X, class Out>
__global__ void __launch_bounds__(kThreads) gather_channels(Frames x, int stride, int out_frames, Out* to) {
  await_inputs();
  __shared__ float square[kSquare][kSquare + 1];
  const int first_out = blockIdx.x * kSquare, first_channel = blockIdx.y * kSquare, tap = blockIdx.z;
  const auto* const from = static_cast<const X*>(x.data);
  for (int i = threadIdx.y; i < kSquare; i += kThreads / kSquare) {
    const int channel = first_channel + i, frame = (first_out + static_cast<int>(threadIdx.x)) * stride - 1 + tap;
    const bool real = channel < x.channels && frame >= 0 && frame < x.frames;
    square[i][threadIdx.x] = real ? widen(from[channel * x.channel_stride + frame]) : 0.0f;
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kSquare; i += kThreads / kSquare) {
    const int channel = first_channel + static_cast<int>(threadIdx.x), out = first_out + i;
    if (channel < x.channels && out < out_frames)
      to[(static_cast<std::int64_t>(out) * 3 + tap) * x.channels + channel] = narrow<Out>(square[threadIdx.x][i]);
  }
}

// Of x with its channels side by side. Blocks (output, tap).
template <class X, class Out>
__global__ void __launch_bounds__(kThreads) gather_frames(Frames x, int stride, Out* to) {
  await_inputs();
  const int tap = blockIdx.y, frame = static_cast<int>(blockIdx.x) * stride - 1 + tap;
  const bool real = frame >= 0 && frame < x.frames;
  const X* const from = static_cast<const X*>(x.data) + (real ? frame * x.frame_stride : 0);
  Out* const row = to + (static_cast<std::int64_t>(blockIdx.x) * 3 + tap) * x.channels;
  for (int channel = threadIdx.x; channel < x.channels; channel += kThreads)
    row[channel] = real ? narrow<Out>(widen(from[channel])) : narrow<Out>(0.0f);
}

template <class X, class Out>
void gather(OpContext& context, const Conv1dArgs& args, const TensorView& rows) {
  const int out_frames = static_cast<int>(args.out.dim(0)), channels = static_cast<int>(args.weight->num_inputs() / 3);
  Frames x{args.x.pointer, args.channels_first ? 1 : args.x.stride(0), args.channels_first ? args.x.stride(0) : 1,
           static_cast<int>(args.x.dim(args.channels_first ? 1 : 0)), channels};
  Out* const to = rows.data<Out>();
  if (args.channels_first) {
    const dim3 grid((out_frames + kSquare - 1) / kSquare, (channels + kSquare - 1) / kSquare, 3);
    launch_kernel(context, gather_channels<X, Out>, grid, dim3(kSquare, kThreads / kSquare), 0, x, args.stride,
                  out_frames, to);
  } else {
    launch_kernel(context, gather_frames<X, Out>, dim3(out_frames, 3), kThreads, 0, x, args.stride, to);
  }
}

}  // namespace

Status conv1d_cuda(OpContext& context, const Conv1dArgs& args) {
  const std::size_t mark = context.arena.mark();
  const DType dtype = args.weight->storage().dtype();
  const TensorView rows = context.temporary(dtype, {args.out.dim(0), args.weight->num_inputs()});
  MSTAR_TRY(with_float_type(args.x.dtype, [&](auto from) {
    return with_float_type(dtype, [&](auto to) {
      gather<decltype(from), decltype(to)>(context, args, rows);
      return cuda_launch_status("conv1d");
    });
  }));
  MSTAR_TRY(linear(context, {.x = rows,
                             .weight = args.weight,
                             .bias = args.bias,
                             .residual = args.residual,
                             .activation = args.activation,
                             .out = args.out}));
  context.arena.rewind(mark);
  return ok_status();
}

}  // namespace mstar
