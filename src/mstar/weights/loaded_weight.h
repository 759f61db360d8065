// What a home gets: one array, or several stacked by rows, each as its checkpoint stores it; and ways to make it
// usable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mstar/base/block_format.h"
#include "mstar/base/result.h"
#include "mstar/base/shares.h"
#include "mstar/device/device.h"
#include "mstar/tensor/tensor.h"

namespace mstar::weights {

// Rows of one stored array, in place. A row is everything past axis 0; its elements are contiguous but not aligned.
struct WeightPart {
  std::string source;            // name in the checkpoint; empty for rows of zeros
  StoredType type = DType::f32;  // blocks lie along a row
  std::int64_t num_rows = 0;
  std::int64_t row_elements = 0;
  std::int64_t row_stride_bytes = 0;
  const std::byte* rows = nullptr;   // null: zeros
  std::vector<float> divisors = {};  // one per row for integer dtypes with a scale, else empty: real = stored / divisor
};

// What a rank takes of a home: ranges of one axis, 0 or 1, in this order. Without ranges: the whole.
struct Cut {
  int axis = 0;
  std::vector<AxisRange> ranges = {};
  bool is_whole() const { return ranges.empty(); }
  std::int64_t length() const;  // of the axis, after the cut
};

// Parts as aligned views, for packing. Bytes that were aligned in the file stay there; others are copied here.
class AlignedParts {
 public:
  struct Part {
    // Host memory, never to be written: [num_rows, row_elements], or with blocks [num_rows, bytes of a row] of u8.
    TensorView weight;
    std::optional<BlockFormat> blocks;
    const float* row_scale = nullptr;  // [num_rows], real = stored * row_scale; null when there is none
  };
  std::span<const Part> parts() const { return parts_; }

 private:
  friend class LoadedWeight;
  std::vector<Part> parts_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::vector<std::vector<float>> scales_;
};

// Borrows from the checkpoint, which must outlive it. Thread: any for const use.
class LoadedWeight {
 public:
  LoadedWeight(std::string home, Shape shape, std::vector<WeightPart> parts)
      : home_(std::move(home)), shape_(shape), parts_(std::move(parts)) {}

  const std::string& home() const { return home_; }
  const Shape& shape() const { return shape_; }
  std::span<const WeightPart> parts() const { return parts_; }
  // The type of the parts, or f32 when they differ.
  StoredType stored_type() const;
  // Rows [begin, end) of axis 0, across parts.
  LoadedWeight rows(std::int64_t begin, std::int64_t end) const;
  // Rows, or one range of columns, stay where they are; of several ranges of columns a copy is made, which lives as
  // long as what is cut from it. bad_model, naming the home: ranges outside it, columns within a block.
  Result<LoadedWeight> cut(const Cut& cut) const;

  // Widened, scaled or dequantised into row-major f32: `to` holds shape().num_elements() floats. Rows [begin, end) only
  // in the second.
  void to_f32(std::span<float> to) const;
  void rows_to_f32(std::int64_t begin, std::int64_t end, std::span<float> to) const;
  std::vector<float> to_f32() const;
  // A tensor of shape() on `device`. `dtype` f32, f16 or bf16 (rounded to nearest even), or the stored dtype when it
  // has no scale. Cost: one pass; on a GPU through 16 MiB of pinned memory. Errors: exhausted; bad_model for other
  // dtypes.
  Result<Tensor> to_tensor(Device& device, DType dtype) const;
  // Needs parts of rank 1 or more.
  AlignedParts aligned() const;

 private:
  Result<WeightPart> columns_of(const WeightPart& part, const Cut& cut,
                                std::vector<std::shared_ptr<const std::byte[]>>& copies) const;

  std::string home_;
  Shape shape_;
  std::vector<WeightPart> parts_;
  std::vector<std::shared_ptr<const std::byte[]>> copies_ = {};  // that parts are in
};

}  // namespace mstar::weights
