// Point-wise ops on rows, for what no epilogue takes along. Rows are those of [M, N], or of [tokens, heads, N] where
// heads lie apart too. Views are f32; on CUDA also f16 or bf16, all of one op alike (softmax: f32 alone), computed in
// f32 and rounded once; silu and sigmoid of 16-bit views are approximate there, to about 1e-6 of their size. A row's
// bits do not depend on the other rows. Errors: internal (shapes). No workspace.
#pragma once

#include "mstar/ops/activation.h"
#include "mstar/ops/op_context.h"

namespace mstar {

struct AddArgs {
  TensorView a;    // [M, N]; rows may lie apart
  TensorView b;    // [M, N], or [1, N] for every row
  TensorView out;  // [M, N]; may be a or b
};
Status add(OpContext& context, const AddArgs& args);

struct ActivateArgs {
  TensorView x;  // [M, N]; rows may lie apart
  Activation activation = Activation::none;
  TensorView out;        // [M, N]; may be x
  TensorView bias = {};  // [N] f32, or a null pointer
};
// out = activation(x + bias). With a bias, gelu_erf of 16-bit views is approximate on CUDA too, to 2e-7 beside their
// rounding.
Status activate(OpContext& context, const ActivateArgs& args);

struct SiluMulArgs {
  TensorView gate;  // [M, N] or [tokens, heads, N]; rows may lie apart (halves of one projection)
  TensorView up;    // same
  TensorView out;   // same; may be gate or up
};
// out = silu(gate) * up.
Status silu_mul(OpContext& context, const SiluMulArgs& args);

struct SigmoidMulArgs {
  TensorView gate;  // [M, N] or [tokens, heads, N]; rows may lie apart
  TensorView x;     // same
  TensorView out;   // same; may be gate or x
};
// out = sigmoid(gate) * x.
Status sigmoid_mul(OpContext& context, const SigmoidMulArgs& args);

struct SoftmaxArgs {
  TensorView x;    // [M, N] f32; rows may lie apart
  TensorView out;  // [M, N] f32; may be x
};
Status softmax(OpContext& context, const SoftmaxArgs& args);

}  // namespace mstar
