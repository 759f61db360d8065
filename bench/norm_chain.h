// What lies around a norm in a decoder's layer: a product that adds to the stream, the norm, a product that reads it;
// with the norm passed between the products or in a kernel of its own.
#pragma once

#include <optional>

#include "mstar/ops/layer_norm/layer_norm.h"
#include "mstar/ops/linear/gated_linear.h"
#include "mstar/ops/linear/linear_stream.h"
#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar::bench {

// A cut of the streaming kernel, or what the op takes by itself.
using CutOrDefault = std::optional<StreamCut>;

struct NormChain {
  TensorView from;                     // [M, K], of x's dtype
  const LinearWeight* adds = nullptr;  // [D, K]
  TensorView adds_bias;                // [D] f32, or a null pointer
  TensorView stream;                   // [M, D] f32
  TensorView gains;                    // [D] f32
  float gain_offset = 0.0f, epsilon = 1e-6f;
  TensorView shifts;                    // [D] f32: of a layer norm; or a null pointer: an RMS norm
  TensorView normed;                    // [M, D], of x's dtype
  TensorView squares, sums;             // [most_square_parts(D), square_columns(M)] f32, or null pointers
  const LinearWeight* reads = nullptr;  // [N, D]
  TensorView reads_bias;                // [N] f32, or a null pointer
  TensorView folded;                    // [2, N] f32 of fold_norm(), for a layer norm that may be passed
  Activation activation = Activation::none;
  bool gated = false;
  CutOrDefault adds_cut, reads_cut;
  TensorView out;  // [M, N], gated [M, N / 2]
};

inline Status norm_of_chain(OpContext& context, const NormChain& chain) {
  if (chain.shifts.pointer)
    return layer_norm(context, {.x = chain.stream,
                                .weight = chain.gains,
                                .bias = chain.shifts,
                                .epsilon = chain.epsilon,
                                .out = chain.normed});
  return rms_norm(context, {.x = chain.stream,
                            .weight = chain.gains,
                            .epsilon = chain.epsilon,
                            .weight_offset = chain.gain_offset,
                            .out = chain.normed});
}

// `passed`: as a decoder does it where both products can; else norm by norm. Whether the norm was passed.
inline Result<bool> run_norm_chain(OpContext& context, const NormChain& chain, bool passed) {
  LinearArgs first;
  first.x = chain.from;
  first.weight = chain.adds;
  first.bias = chain.adds_bias;
  first.residual = first.out = chain.stream;
  const bool is_layer_norm = chain.shifts.pointer;
  const bool may_pass = passed && (!is_layer_norm || chain.folded.pointer);
  std::int64_t parts = may_pass ? passed_norm_parts(context, first, {chain.reads, chain.out.dtype, chain.gated}) : 0;
  if (parts > 0 && chain.adds_cut) parts = square_parts(chain.stream.dim(1), *chain.adds_cut);
  RowSquares lacking;
  TensorView reads_bias = chain.reads_bias;
  if (parts > 0) {
    lacking = {.parts = chain.squares.slice(0, parts), .width = chain.stream.dim(1), .epsilon = chain.epsilon};
    if (is_layer_norm) {
      lacking.sums = chain.sums.slice(0, parts);
      lacking.weighted_gains = chain.folded.at(0);
      reads_bias = chain.folded.at(1);
    }
    first.passed = {chain.gains, chain.gain_offset, chain.normed, lacking.parts, lacking.sums};
  }
  MSTAR_TRY(chain.adds_cut ? stream_linear(context, first, *chain.adds_cut) : linear(context, first));
  if (parts == 0) MSTAR_TRY(norm_of_chain(context, chain));
  if (chain.gated) {
    const GatedLinearArgs second{.x = chain.normed, .weight = chain.reads, .out = chain.out, .squares = lacking};
    MSTAR_TRY(chain.reads_cut ? stream_gated_linear(context, second, *chain.reads_cut) : gated_linear(context, second));
    return parts > 0;
  }
  LinearArgs second;
  second.x = chain.normed;
  second.weight = chain.reads;
  second.bias = reads_bias;
  second.activation = chain.activation;
  second.out = chain.out;
  second.squares = lacking;
  MSTAR_TRY(chain.reads_cut ? stream_linear(context, second, *chain.reads_cut) : linear(context, second));
  return parts > 0;
}

}  // namespace mstar::bench
