// Blocks of quantised weights as GGUF files hold them (github.com/ggml-org/ggml, ggml-common.h), and one name for all
// the ways in which a weight is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "mstar/base/check.h"
#include "mstar/base/dtype.h"

namespace mstar {

// A block is a run of neighbouring elements of a row that share scales. An element is scale * code, less a minimum in
// the formats that end with _1 and in q4_k and q5_k.
enum class BlockFormat : std::uint8_t { q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };
inline constexpr BlockFormat kBlockFormats[] = {BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q4_1,
                                                BlockFormat::q5_0, BlockFormat::q5_1, BlockFormat::q4_k,
                                                BlockFormat::q5_k, BlockFormat::q6_k};

std::int64_t block_elements(BlockFormat format);  // 32, or 256 for the _k formats
std::size_t block_bytes(BlockFormat format);
std::string_view block_format_name(BlockFormat format);
std::optional<BlockFormat> block_format_from_name(std::string_view name);

// The f32 values of whole blocks: `blocks` at any address, `num_elements` a multiple of block_elements. Scalar, each
// product and sum rounded once: bit for bit what the Python package `gguf` makes of the same bytes.
void dequantise(BlockFormat format, const std::byte* blocks, std::int64_t num_elements, float* to);

// The codes of one block and the scales of its groups, for those who compute with them. An element of group g is
// scales[g] * (codes[i] - offset) - mins[g], where scales[g] = scale * multipliers[g] and so for mins; multipliers are
// 1 where the format has one group.
struct UnpackedBlock {
  std::uint8_t codes[256];
  int offset;             // 0, 8, 16, 32 or 128
  int num_groups;         // of block_elements / num_groups elements
  std::uint16_t scale;    // bits of a half
  std::uint16_t minimum;  // bits of a half, of what is taken away; 0 without minima
  std::int8_t scale_multipliers[16];
  std::uint8_t min_multipliers[16];
};
void unpack(BlockFormat format, const std::byte* block, UnpackedBlock& to);

// The elements of a weight, as a dtype or in blocks. Implicit from both, so that it stands wherever a dtype stood.
class StoredType {
 public:
  constexpr StoredType() = default;
  constexpr StoredType(DType dtype) : value_(static_cast<std::uint8_t>(dtype)) {}  // NOLINT: implicit
  constexpr StoredType(BlockFormat format) : is_blocks_(true), value_(static_cast<std::uint8_t>(format)) {}  // NOLINT

  constexpr bool is_blocks() const { return is_blocks_; }
  DType dtype() const {
    MSTAR_CHECK(!is_blocks_);
    return static_cast<DType>(value_);
  }
  BlockFormat blocks() const {
    MSTAR_CHECK(is_blocks_);
    return static_cast<BlockFormat>(value_);
  }
  // The least run of elements that has bytes of its own: 1 for dtypes.
  std::int64_t unit_elements() const { return is_blocks_ ? block_elements(blocks()) : 1; }
  std::size_t unit_bytes() const { return is_blocks_ ? block_bytes(blocks()) : dtype_bytes(dtype()); }
  // Of a multiple of unit_elements.
  std::size_t row_bytes(std::int64_t num_elements) const {
    return static_cast<std::size_t>(num_elements / unit_elements()) * unit_bytes();
  }
  std::string_view name() const { return is_blocks_ ? block_format_name(blocks()) : dtype_name(dtype()); }

  friend constexpr bool operator==(StoredType, StoredType) = default;

 private:
  bool is_blocks_ = false;
  std::uint8_t value_ = static_cast<std::uint8_t>(DType::f32);
};

}  // namespace mstar
