// y = activation(x W^T + bias) + residual. The same bits for a row whatever the batch, the tiles or the threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "mstar/base/block_format.h"
#include "mstar/ops/activation.h"
#include "mstar/ops/linear/passed_norm.h"
#include "mstar/ops/op_context.h"

namespace mstar {

// Rows of a weight as a checkpoint holds them: [rows, K], row-major, f32, f16, bf16 or i8; or rows of blocks at any
// address, as [rows, bytes of a row] of u8.
struct LinearSource {
  TensorView weight;
  const float* row_scale = nullptr;  // [rows]; real weight = i8 * row_scale. Needed for i8, not allowed otherwise.
  std::optional<BlockFormat> blocks = {};

  std::int64_t num_inputs() const {
    if (!blocks) return weight.dim(1);
    return weight.dim(1) / static_cast<std::int64_t>(block_bytes(*blocks)) * block_elements(*blocks);
  }
};

// A weight prepared once at load. On the CPU: columns of W^T in panels of kPanel outputs, each [K][kPanel] (i8:
// [K/4][kPanel][4]; blocks: linear_blocks.h, at most 3 % more bytes than in the file), the last panel padded with
// zeros. On CUDA: W as it is, [N, K] row-major. Move-only; thread: any for const use.
class LinearWeight {
 public:
  static constexpr int kPanel = 32;

  LinearWeight() = default;
  // Stacks the rows of `sources` (equal K), for instance query, key and value projections. `storage` is f32, f16, bf16
  // or i8: rounded to nearest even; to i8 by row with scale max|w| / 127 (an i8 source keeps its own numbers and
  // scales); or the block format of every source, whose numbers stay as they are. The sources are on the host; the work
  // is spread over `pool` when there is one. Errors: bad_model (dtype, shape or scale; sources of another block format;
  // i8 or blocks on CUDA), exhausted.
  static Result<LinearWeight> pack(Device& device, std::span<const LinearSource> sources, StoredType storage,
                                   ThreadPool* pool = nullptr);
  static Result<LinearWeight> pack(Device& device, const LinearSource& source, StoredType storage,
                                   ThreadPool* pool = nullptr) {
    return pack(device, std::span<const LinearSource>(&source, 1), storage, pool);
  }

  std::int64_t num_outputs() const { return num_outputs_; }  // N
  std::int64_t num_inputs() const { return num_inputs_; }    // K
  std::int64_t num_panels() const { return (num_outputs_ + kPanel - 1) / kPanel; }
  // K rounded up to a multiple of 4 for i8, else K.
  std::int64_t padded_inputs() const { return padded_inputs_; }
  StoredType storage() const { return storage_; }
  Backend backend() const { return panels_.view().device.backend; }
  std::size_t bytes() const { return panels_.bytes() + scales_.bytes() + sums_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(panels_); }

  // CUDA: [N, K] on the device.
  const void* rows() const { return panels_.view().pointer; }
  // CUDA: from now on an output's order of sums depends on K and N alone, never on M (batch-invariant mode). Slower
  // from 33 rows on. The CPU is always so. Before the first use.
  void keep_one_order() { keeps_one_order_ = true; }
  bool keeps_one_order() const { return keeps_one_order_; }
  // From here on the CPU's.
  const void* panel(std::int64_t index) const {
    return panels_.view().data<std::byte>() + static_cast<std::size_t>(index) * panel_bytes();
  }
  std::size_t panel_bytes() const { return panel_bytes_; }
  // i8 only, [num_panels * kPanel]: multiplier of a column, and the sum of its numbers.
  const float* column_scales() const { return scales_.view().data<float>(); }
  const std::int32_t* column_sums() const { return sums_.view().data<std::int32_t>(); }

  // Widens row `output` of W (K values) to f32: how a tied embedding is looked up. Of blocks, what dequantise() gives.
  void read_row(std::int64_t output, float* to) const;

 private:
  class StackedRows;
  Status upload_rows(Device& device, std::span<const LinearSource> sources);
  Status allocate_panels(Device& device);
  void pack_panels(std::int64_t begin, std::int64_t end, const StackedRows& stacked);

  Tensor panels_;
  Tensor scales_;
  Tensor sums_;
  std::int64_t num_outputs_ = 0;
  std::int64_t num_inputs_ = 0;
  std::int64_t padded_inputs_ = 0;
  std::size_t panel_bytes_ = 0;
  StoredType storage_ = DType::f32;
  bool keeps_one_order_ = false;
};

struct LinearArgs {
  TensorView x;  // [M, K] f32, on CUDA also bf16 or f16; rows may lie apart or overlap
  const LinearWeight* weight = nullptr;
  TensorView bias;      // [N] f32, or a null pointer
  TensorView residual;  // [M, N] of out's dtype, or a null pointer; may be `out` itself
  Activation activation = Activation::none;
  TensorView out;  // [M, N] f32, on CUDA also bf16 or f16; rows may lie apart; must not overlap x
  // CUDA, where passed_norm_parts() says so: x W^T gets what x lacks of a norm, before the bias; and what the norm
  // behind wants is left.
  RowSquares squares = {};
  PassedNorm passed = {};
};

// On the CPU each output is one chain of fused multiply-adds over k = 0..K-1 in f32, whatever M is; weights of 16 bits
// are widened. i8 weights: a row of x is rounded to i8 with scale max|x| / 127 and the sum is exact in i32. Blocks:
// every 32 neighbours of a row of x are rounded to i8 with a scale of their own, max|x| / 127; the sum over 32 (16 in
// q6_k) is exact in i32, and an output is one chain over these sums in f32: the exact product with the rounded row but
// for K / 32 roundings of f32, and within about 0.6 % (root mean square) of that with x.
// On CUDA x and the weight are multiplied as they are and added in f32, in an order that depends on the shape. It
// depends on M too unless the weight keeps one order: few rows have kernels of our own, many go to cuBLASLt where x has
// the weight's dtype and rows start on 16 bytes; what neither takes goes through a kernel for any rows, which is slow
// for many. Of many rows, the product of a layer with 16-bit outputs and a bias or an activation is rounded to out's
// dtype once more, before the bias. A shape whose library kernel is not loaded yet must not be captured first.
// With `passed` or `squares` the order depends on M and on which kernel's cut the other product has.
// Thread: the step's owner. Cost: M N K multiply-adds; reads the weight once for M <= 8. Errors: internal (shapes).
Status linear(OpContext& context, const LinearArgs& args);
// Arena bytes that a call takes and gives back.
std::size_t linear_workspace_bytes(const LinearWeight& weight, std::int64_t num_rows, int num_threads);

}  // namespace mstar
