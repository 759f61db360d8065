// The kernels that stream a weight once past few rows of x.
#pragma once

#include <cstdint>

#include "mstar/ops/linear/gated_linear.h"

namespace mstar {

// How a weight [N, K] is cut. The order of an output's sums depends on `split`, and on whether two groups of warps
// share its K: they do with one fragment and up to 32 rows, and always where the weight keeps one order.
struct StreamCut {
  int fragments = 1;  // a block takes 64 * fragments rows of W
  int split = 1;      // parts of K, one block each: 1, 2, 4 or 8
};

inline constexpr int kStreamRows = 64;  // of x at once; more go in turns, each of which reads the weight

// The fixed rule. `split` does not depend on the number of rows.
StreamCut stream_cut(std::int64_t num_rows, std::int64_t num_outputs, std::int64_t num_inputs);
// In how many parts the kernel leaves squares (passed_norm.h): one for each block and tile.
std::int64_t square_parts(std::int64_t num_outputs, StreamCut cut);
// Whether x and the weight can be streamed: both bf16 or f16, rows of x on 16 bytes, K a multiple of 8.
bool can_stream(const LinearWeight& weight, const TensorView& x);
Status stream_linear(OpContext& context, const LinearArgs& args, StreamCut cut);
Status stream_gated_linear(OpContext& context, const GatedLinearArgs& args, StreamCut cut);

}  // namespace mstar
