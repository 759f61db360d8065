// 1-D convolution over frames with kernel 3 and padding 1, as the linear op over overlapping rows.
#pragma once

#include <cstddef>

#include "mstar/ops/linear/linear.h"
#include "mstar/ops/op_context.h"

namespace mstar {

// Packs [out_channels, in_channels, 3] (f32, f16, bf16, contiguous) to the linear weight [out_channels, 3 *
// in_channels] with the taps outermost, so that three neighbouring frames are one row. `weight` is on the host. Errors:
// bad_model, exhausted.
Result<LinearWeight> pack_conv1d(Device& device, const TensorView& weight, DType storage);

struct Conv1dArgs {
  // [frames, channels] contiguous; channels_first: [channels, frames], frames contiguous. f32, on CUDA also bf16 or f16
  TensorView x;
  bool channels_first = false;
  const LinearWeight* weight = nullptr;  // of pack_conv1d
  TensorView bias;                       // [out_channels] f32, or a null pointer
  int stride = 1;                        // 1 or 2
  Activation activation = Activation::none;
  TensorView residual;  // [out_frames, out_channels] of out's dtype, added after the activation, or a null pointer
  // [out_frames, out_channels] f32, on CUDA also bf16 or f16; out_frames = (frames - 1) / stride + 1
  TensorView out;
};

// Errors: internal (shapes). On CUDA x is rounded to the weight's dtype first, into a temporary of [out_frames, 3
// channels].
Status conv1d(OpContext& context, const Conv1dArgs& args);
std::size_t conv1d_workspace_bytes(const Conv1dArgs& args, int num_threads);

}  // namespace mstar
