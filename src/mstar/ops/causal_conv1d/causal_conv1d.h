// Depthwise causal convolution over the tokens of ragged rows. The last inputs of each row are its state.
#pragma once

#include <cstdint>

#include "mstar/ops/activation.h"
#include "mstar/ops/op_context.h"
#include "mstar/tensor/kv_view.h"

namespace mstar {

inline constexpr std::int64_t kMaxConvTaps = 8;

struct CausalConv1dArgs {
  TensorView x;                             // [tokens, channels] f32, on CUDA also bf16; tokens may lie apart
  RaggedView rows;                          // tokens that belong to no row are left alone
  const std::int32_t* positions = nullptr;  // [tokens] in their sequences
  TensorView weight;  // [taps, channels] f32 contiguous, oldest tap first; 2 <= taps <= kMaxConvTaps
  Activation activation = Activation::none;
  TensorView state;                          // [num_slots, taps - 1, channels] f32, oldest first; slots may lie apart
  const std::int32_t* slots = nullptr;       // [rows], no two rows with tokens share one
  const std::int32_t* read_slots = nullptr;  // [rows], where a row's state is before; null: where it will be
  KeptStates kept = {};                      // copies of states within rows
  TensorView out;                            // [tokens, channels] of x's dtype; tokens may lie apart; not x
};

// out[t] = activation(sum over j of weight[j] * x[t - taps + 1 + j]); tokens before the row's first are its state,
// which ends as the row's last taps - 1 inputs; what is kept after n tokens is what a row of those n would end with. A
// row whose first token is at position 0 starts from zeros, whatever the slot holds.
//
// Products are fused, oldest tap first: a token's bits depend neither on the other rows nor on how its sequence is cut
// into steps. On CUDA channels are a multiple of 4, and x, out, weight and state begin on 4 elements' bytes. Errors:
// internal (shapes). No workspace. Cost: 2 taps tokens channels flop; each input is read once from memory.
Status causal_conv1d(OpContext& context, const CausalConv1dArgs& args);

}  // namespace mstar
