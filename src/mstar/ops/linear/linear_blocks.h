// Block-quantised weights inside of linear: how a panel holds them, and the kernels that its table's entry puts
// together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mstar/base/block_format.h"
#include "mstar/ops/linear/linear_kernels.h"

namespace mstar {

// A group is 32 neighbouring inputs. A step of a panel is a block of each of its 32 outputs: one group, or eight of the
// _k formats. It lies as
//   scales, then minima where the format has them: a half for each output;
//   for each group: multipliers of the _k formats (u8 scale and u8 minimum for each output; q6_k: i8 scales of inputs
//   0-15, then of 16-31), low bits of the codes, high bits.
// Low bits: four neighbouring inputs of an output are a word of four bytes; [8 words][32 outputs] of whole bytes in
// q8_0, else [4][32] bytes that hold word 2p in their low and word 2p + 1 in their high four bits. High bits: in q5 a
// byte for each input of a word, bit w of it for word w; in q6_k two such planes, bits 2w and 2w + 1 for words w and 4
// + w.
struct BlockLayout {
  int bits = 4;
  int offset = 0;        // what codes are above their value
  bool has_min = false;  // value = scale * code - min; else scale * (code - offset)
  int groups = 1;
  bool halves = false;  // two scales in a group

  constexpr std::size_t low_bytes() const { return bits == 8 ? 1024 : 512; }
  constexpr std::size_t high_bytes() const { return bits == 5 ? 128 : bits == 6 ? 256 : 0; }
  constexpr std::size_t multiplier_bytes() const { return groups == 1 ? 0 : 64; }
  constexpr std::size_t header_bytes() const { return has_min ? 128 : 64; }
  constexpr std::size_t group_bytes() const { return multiplier_bytes() + low_bytes() + high_bytes(); }
  constexpr std::size_t step_bytes() const { return header_bytes() + static_cast<std::size_t>(groups) * group_bytes(); }
  // A group of a row of x: eight words of i8 codes, its scale as f32, and what the sums of products start from
  // (i32: -offset * sum of the codes, for each half if there are two) or, with minima, f32: -scale * sum of the codes.
  constexpr int group_words() const { return halves ? 11 : 10; }
};

constexpr BlockLayout block_layout(BlockFormat format) {
  switch (format) {
    case BlockFormat::q8_0:
      return {.bits = 8, .offset = 128};
    case BlockFormat::q4_0:
      return {.bits = 4, .offset = 8};
    case BlockFormat::q4_1:
      return {.bits = 4, .has_min = true};
    case BlockFormat::q5_0:
      return {.bits = 5, .offset = 16};
    case BlockFormat::q5_1:
      return {.bits = 5, .has_min = true};
    case BlockFormat::q4_k:
      return {.bits = 4, .has_min = true, .groups = 8};
    case BlockFormat::q5_k:
      return {.bits = 5, .has_min = true, .groups = 8};
    case BlockFormat::q6_k:
      return {.bits = 6, .offset = 32, .groups = 8, .halves = true};
  }
  return {};
}

inline constexpr int kGroupInputs = 32;
inline constexpr int kGroupScaleWord = 8, kGroupExcessWord = 9;

// A group made wide: codes as bytes [8][32][4], f32 scales [32], then f32 minima or the second half's scales [32].
inline constexpr std::size_t kWideScalesAt = 1024, kWideMinimaAt = kWideScalesAt + 128;
inline constexpr std::size_t kWideGroupBytes = kWideMinimaAt + 128;

// Sums are floats. widen() makes wide groups of steps, which wide_block_tiles() multiply.
const LinearTiles& block_tiles(BlockFormat format);
const LinearTiles& wide_block_tiles(BlockFormat format);

// Writes the groups of rows of x; x.dim(1) is a multiple of 32. A group's scale is max|x| / 127, codes are rounded to
// nearest even; a group with an infinity or a NaN gets the scale NaN.
void quantise_groups(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, BlockFormat format,
                     std::uint32_t* words);

// Puts a block row of K inputs into a panel whose bytes are zero; and takes it out again as f32, equal to dequantise().
void put_block_row(BlockFormat format, const std::byte* blocks, std::int64_t num_inputs, int column, std::byte* panel);
void get_block_row(BlockFormat format, const std::byte* panel, std::int64_t num_inputs, int column, float* to);

Status linear_cpu_blocks(OpContext& context, const LinearArgs& args);

}  // namespace mstar
