// A norm between two products that has no kernel of its own. The product in front, which adds to the residual stream,
// leaves its rows times the norm's gains and the sums of squares of parts of each row; the product behind multiplies
// its sums by the factor r = 1 / sqrt(mean(x^2) + epsilon) that its rows lack. Of a layer norm it leaves the sums of
// the elements too, and the product behind makes
//   r (W (g x) - mean(x) W g) + (W b + bias),  r = 1 / sqrt(mean(x^2) - mean(x)^2 + epsilon),
// from vectors W g and W b + bias that fold_norm() makes once.
//
// A layer norm's rows are rounded to bf16 before their mean is taken off, which makes the error of that rounding
// sqrt(1 + mean^2 / variance) times as large, and the variance is a difference in f32, with a relative error of about
// 2^-22 (1 + mean^2 / variance). So rows must not have means of many standard deviations; those of Whisper's decoders
// have up to a quarter of one (tiny.en; bench/notes/gpu_whisper.md).
#pragma once

#include <cstdint>

#include "mstar/ops/op_context.h"

namespace mstar {

class LinearWeight;
struct LinearArgs;

// What linear() leaves beside `out` for the norm of its rows.
struct PassedNorm {
  TensorView gains;          // [N] f32, or a null pointer: nothing is left
  float gain_offset = 0.0f;  // 1 for models that store gain - 1
  TensorView rows;           // [M, N] bf16: out * (gain + gain_offset), rounded once; rows on 16 bytes
  TensorView squares;        // [num_parts, square_columns(M)] f32
  TensorView sums;           // the same, of the elements: for a layer norm. Or a null pointer
};

// What a product's rows x lack: it multiplies each row's sums by 1 / sqrt(sum(squares) / width + epsilon), or does what
// a layer norm wants, before the bias.
struct RowSquares {
  TensorView parts;        // [num_parts, square_columns(M)] f32, or a null pointer: x is whole
  std::int64_t width = 0;  // of the rows that were squared
  float epsilon = 0.0f;
  TensorView sums = {};            // as parts, of the elements: of a layer norm. Or a null pointer
  TensorView weighted_gains = {};  // [N] f32 with sums, on 16 bytes: W g. The product's bias is then W b + bias
};

inline constexpr std::int64_t kMostPassedRows = 64;
// Of a matrix of squares for `num_rows` rows: they are read in fours.
constexpr std::int64_t square_columns(std::int64_t num_rows) { return (num_rows + 3) / 4 * 4; }
// No product of `num_outputs` leaves more parts.
constexpr std::int64_t most_square_parts(std::int64_t num_outputs) { return num_outputs / 8; }

// Who reads the rows next.
struct PassedNormReader {
  const LinearWeight* weight = nullptr;
  DType out = DType::f32;  // of its product
  bool gated = false;      // by gated_linear(), which takes no layer norm's rows; else linear()
};

// In how many parts linear(args) would leave squares for `reader`; 0 where the norm must be an op of its own: on the
// CPU, of more than kMostPassedRows rows, between two weights of more than 16M elements, where rows do not start on 16
// bytes, or where either product is not the streaming kernel's or keeps one order of sums. `args.passed` need not be
// set. Thread: any.
std::int64_t passed_norm_parts(const OpContext& context, const LinearArgs& args, const PassedNormReader& reader);

}  // namespace mstar
