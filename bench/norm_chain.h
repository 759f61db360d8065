// What lies around a norm in a decoder's layer: a product that adds to the stream, the norm, a product that reads it;
// with the norm passed between the products or in a kernel of its own.
#pragma once

#include <optional>

#include "mstar/ops/linear/gated_linear.h"
#include "mstar/ops/linear/linear_stream.h"
#include "mstar/ops/rms_norm/rms_norm.h"

namespace mstar::bench {

// A cut of the streaming kernel, or what the op takes by itself.
using CutOrDefault = std::optional<StreamCut>;

struct NormChain {
  TensorView from;                     // [M, K], of x's dtype
  const LinearWeight* adds = nullptr;  // [D, K]
  TensorView stream;                   // [M, D] f32
  TensorView gains;                    // [D] f32
  float gain_offset = 0.0f, epsilon = 1e-6f;
  TensorView normed;                    // [M, D], of x's dtype
  TensorView squares;                   // [most_square_parts(D), square_columns(M)] f32, or a null pointer
  const LinearWeight* reads = nullptr;  // [N, D]
  bool gated = false;
  CutOrDefault adds_cut, reads_cut;
  TensorView out;  // [M, N], gated [M, N / 2]
};

// `passed`: as a decoder does it where both products can; else norm by norm. Whether the norm was passed.
inline Result<bool> run_norm_chain(OpContext& context, const NormChain& chain, bool passed) {
  LinearArgs first;
  first.x = chain.from;
  first.weight = chain.adds;
  first.residual = first.out = chain.stream;
  std::int64_t parts = passed ? passed_norm_parts(context, first, {chain.reads, chain.out.dtype, chain.gated}) : 0;
  if (parts > 0 && chain.adds_cut) parts = square_parts(chain.stream.dim(1), *chain.adds_cut);
  RowSquares lacking;
  if (parts > 0) {
    lacking = {chain.squares.slice(0, parts), chain.stream.dim(1), chain.epsilon};
    first.passed = {chain.gains, chain.gain_offset, chain.normed, lacking.parts};
  }
  MSTAR_TRY(chain.adds_cut ? stream_linear(context, first, *chain.adds_cut) : linear(context, first));
  if (parts == 0)
    MSTAR_TRY(rms_norm(context, {.x = chain.stream,
                                 .weight = chain.gains,
                                 .epsilon = chain.epsilon,
                                 .weight_offset = chain.gain_offset,
                                 .out = chain.normed}));
  if (chain.gated) {
    const GatedLinearArgs second{.x = chain.normed, .weight = chain.reads, .out = chain.out, .squares = lacking};
    MSTAR_TRY(chain.reads_cut ? stream_gated_linear(context, second, *chain.reads_cut) : gated_linear(context, second));
    return parts > 0;
  }
  LinearArgs second;
  second.x = chain.normed;
  second.weight = chain.reads;
  second.out = chain.out;
  second.squares = lacking;
  MSTAR_TRY(chain.reads_cut ? stream_linear(context, second, *chain.reads_cut) : linear(context, second));
  return parts > 0;
}

}  // namespace mstar::bench
