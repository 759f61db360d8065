// Point-wise ops on rows, for what no epilogue takes along.
#pragma once

#include "mstar/ops/activation.h"
#include "mstar/ops/op_context.h"

namespace mstar {

struct AddArgs {
  TensorView a;    // [M, N] f32; rows may lie apart
  TensorView b;    // [M, N] f32, or [1, N] for every row
  TensorView out;  // [M, N] f32; may be a or b
};
Status add(OpContext& context, const AddArgs& args);

struct ActivateArgs {
  TensorView x;  // [M, N] f32; rows may lie apart
  Activation activation = Activation::none;
  TensorView out;  // [M, N] f32; may be x
};
Status activate(OpContext& context, const ActivateArgs& args);

struct SiluMulArgs {
  TensorView gate;  // [M, N] f32; rows may lie apart (halves of one projection)
  TensorView up;    // [M, N] f32
  TensorView out;   // [M, N] f32; may be gate or up
};
// out = silu(gate) * up.
Status silu_mul(OpContext& context, const SiluMulArgs& args);

struct SigmoidMulArgs {
  TensorView gate;  // [M, N] f32; rows may lie apart
  TensorView x;     // [M, N] f32
  TensorView out;   // [M, N] f32; may be gate or x
};
// out = sigmoid(gate) * x. On the CPU only.
Status sigmoid_mul(OpContext& context, const SigmoidMulArgs& args);

struct SoftmaxArgs {
  TensorView x;    // [M, N] f32; rows may lie apart
  TensorView out;  // [M, N] f32; may be x
};
Status softmax(OpContext& context, const SoftmaxArgs& args);

}  // namespace mstar
