// The kernels of linear: what its table names, and the pieces that linear_drive.cc puts together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/ops/linear/fold_norm.h"
#include "mstar/ops/linear/gated_linear.h"
#include "mstar/ops/linear/linear.h"
#include "mstar/ops/view_checks.h"

namespace mstar {

Status linear_cpu_float(OpContext& context, const LinearArgs& args);
Status linear_cpu_i8(OpContext& context, const LinearArgs& args);
// Defined where the build has CUDA. Weights, x and out of f32, f16 and bf16 in any mixture.
Status linear_cuda_rows(OpContext& context, const LinearArgs& args);
// Few rows of x, or one order of sums: the weight streams past them (linear_stream.h).
// Where it is the faster one; where it can.
bool linear_cuda_stream_fits(const OpContext& context, const LinearArgs& args);
bool linear_cuda_can_stream(const OpContext& context, const LinearArgs& args);
Status linear_cuda_stream(OpContext& context, const LinearArgs& args);
std::int64_t linear_cuda_passed_norm_parts(const OpContext& context, const LinearArgs& args,
                                           const PassedNormReader& reader);
bool gated_linear_cuda_stream_fits(const OpContext& context, const GatedLinearArgs& args);
Status gated_linear_cuda_stream(OpContext& context, const GatedLinearArgs& args);
// cuBLASLt: dense rows on 16 bytes.
bool linear_cuda_library_fits(const OpContext& context, const LinearArgs& args);
Status linear_cuda_library(OpContext& context, const LinearArgs& args);
std::size_t linear_cuda_workspace_bytes();
Status fold_norm_cpu(OpContext& context, const FoldNormArgs& args);
Status fold_norm_cuda(OpContext& context, const FoldNormArgs& args);
// out = activation(out + bias) + residual in place; rows and columns as linear_cuda_library_fits() has checked them.
Status linear_cuda_finish(OpContext& context, const LinearArgs& args);
std::size_t linear_cpu_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads);

// Squares of `num_rows` rows, which the streaming kernel alone takes.
inline bool are_squares_of(const OpContext& context, const TensorView& parts, std::int64_t num_rows) {
  return context.backend() == Backend::cuda && num_rows <= kMostPassedRows && parts.shape.rank() == 2 &&
         parts.contiguous() && is_rows_of(parts, DType::f32, parts.dim(0), square_columns(num_rows));
}

// The parts that a layer norm wants beside `parts`, or none.
inline bool are_sums_beside(const TensorView& sums, const TensorView& parts) {
  return !sums.pointer ||
         (sums.contiguous() && sums.shape == parts.shape && is_rows_of(sums, DType::f32, sums.dim(0), sums.dim(1)));
}
// What a product of `num_outputs` is told of its rows.
inline bool is_lack_of_rows(const OpContext& context, const RowSquares& lack, std::int64_t num_rows,
                            std::int64_t num_outputs) {
  if (!lack.parts.pointer) return !lack.sums.pointer;
  return are_squares_of(context, lack.parts, num_rows) && are_sums_beside(lack.sums, lack.parts) &&
         (!lack.sums.pointer || is_vector_of(lack.weighted_gains, DType::f32, num_outputs));
}

// A matrix of f32, on CUDA also of bf16 or f16, as linear takes it.
inline bool is_float_rows(Backend backend, const TensorView& view, std::int64_t num_rows, std::int64_t num_columns) {
  const bool dtype_fits =
      view.dtype == DType::f32 || (backend == Backend::cuda && (view.dtype == DType::bf16 || view.dtype == DType::f16));
  return dtype_fits && is_rows_of(view, view.dtype, num_rows, num_columns);
}

// A tile multiplies rows of `a` with the steps of one panel. A word is 4 bytes: a float, or four i8 (u8 with 128 added
// where the instruction wants it). A step is one k of a float panel, four of an i8 panel. c is [rows][kPanel] words.
inline constexpr int kTileRows = 12;
inline constexpr int kFewRows = 8;

struct LinearTiles {
  // c (=, or += when !first) a b for 1..kTileRows rows; lda in words.
  void (*tile)(const void* a, std::ptrdiff_t lda, int rows, const void* b, std::int64_t steps, void* c, bool first);
  // c = a b for 1..kFewRows rows and `num_panels` neighbouring panels; c is [num_panels][rows][kPanel].
  void (*few)(const void* a, std::ptrdiff_t lda, int rows, const void* panels, std::size_t panel_bytes, int num_panels,
              std::int64_t steps, void* c);
  // Makes of steps of a panel what other tiles (the f32 tiles) read; null where there is nothing to gain.
  void (*widen)(const void* from, std::int64_t steps, void* to);
  std::size_t step_bytes;  // of one panel
  int step_words = 1;      // of a row of a
  int block_steps = 256;   // that pass through the caches at once; at most kWideBytes when they are widened
  int wide_steps = 1;      // of the other tiles, for one of these
  int widen_from_rows = 3 * kTileRows;  // fewer rows than this widen in the tile itself
};
// Room for a widened block: it stays near while rows pass.
inline constexpr std::size_t kWideBytes = std::size_t{32} << 10;

const LinearTiles& float_tiles(DType storage);
const LinearTiles& i8_tiles();
// Whether the words of i8_tiles() hold u8 = code + 128; the sums then carry 128 * column_sums too much.
bool i8_words_are_biased();

// Adds bias, activation and residual to sums [num_rows][kPanel] of one panel and writes them to args.out.
void finish_float_panel(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel,
                        const float* sums);
// The same from i32 sums; row_scales[i] belongs to row first_row + i.
void finish_i8_panel(const LinearArgs& args, std::int64_t first_row, int num_rows, std::int64_t panel,
                     const std::int32_t* sums, const float* row_scales, bool biased);
// Rounds rows of x to i8 words, padded with the code of zero to `num_words` a row; scales[i] = max|x| / 127.
void quantise_rows(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, std::int64_t num_words,
                   bool biased, std::uint32_t* words, float* scales);

// Between f32 and the dtypes of weights; f32 to i8 is quantise_rows.
void widen_elements(DType dtype, const void* from, std::int64_t count, float* to);
void narrow_elements(DType dtype, const float* from, std::int64_t count, void* to);

}  // namespace mstar
