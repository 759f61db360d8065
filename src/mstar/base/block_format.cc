#include "mstar/base/block_format.h"

#include <cstring>
#include <iterator>

namespace mstar {
namespace {

struct Row {
  BlockFormat format;
  std::string_view name;
  std::int64_t elements;
  std::size_t bytes;
};
constexpr Row kRows[] = {{BlockFormat::q8_0, "q8_0", 32, 34},   {BlockFormat::q4_0, "q4_0", 32, 18},
                         {BlockFormat::q4_1, "q4_1", 32, 20},   {BlockFormat::q5_0, "q5_0", 32, 22},
                         {BlockFormat::q5_1, "q5_1", 32, 24},   {BlockFormat::q4_k, "q4_k", 256, 144},
                         {BlockFormat::q5_k, "q5_k", 256, 176}, {BlockFormat::q6_k, "q6_k", 256, 210}};
constexpr bool rows_in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i)
    if (static_cast<std::size_t>(kRows[i].format) != i || kBlockFormats[i] != kRows[i].format) return false;
  return std::size(kRows) == std::size(kBlockFormats);
}
static_assert(rows_in_order(), "kRows is indexed by BlockFormat");

std::uint16_t half_bits(const std::uint8_t* from) { return static_cast<std::uint16_t>(from[0] | from[1] << 8); }

// Two codes of four bits in a byte: the low ones are the first half of a run, the high ones the second.
void unpack_nibbles(const std::uint8_t* from, int half, std::uint8_t* codes) {
  for (int i = 0; i < half; ++i) {
    codes[i] = from[i] & 15;
    codes[half + i] = from[i] >> 4;
  }
}

void unpack_32(BlockFormat format, const std::uint8_t* from, UnpackedBlock& to) {
  to.num_groups = 1;
  to.scale_multipliers[0] = 1;
  to.min_multipliers[0] = 1;
  to.scale = half_bits(from);
  from += 2;
  if (format == BlockFormat::q8_0) {
    to.offset = 128;
    for (int i = 0; i < 32; ++i) to.codes[i] = from[i] ^ 128;
    return;
  }
  const bool has_minimum = format == BlockFormat::q4_1 || format == BlockFormat::q5_1;
  const bool has_fifth = format == BlockFormat::q5_0 || format == BlockFormat::q5_1;
  if (has_minimum) {
    to.minimum = half_bits(from) ^ 0x8000;  // the file adds it
    from += 2;
  }
  to.offset = has_minimum ? 0 : has_fifth ? 16 : 8;
  const std::uint8_t* fifth = from;
  if (has_fifth) from += 4;
  unpack_nibbles(from, 16, to.codes);
  for (int i = 0; has_fifth && i < 32; ++i)
    to.codes[i] = static_cast<std::uint8_t>(to.codes[i] | (fifth[i / 8] >> (i % 8) & 1) << 4);
}

// Eight pairs of six bits in twelve bytes: four low parts of the scales, four of the minima, then their rest.
void unpack_scales(const std::uint8_t* from, UnpackedBlock& to) {
  for (int i = 0; i < 4; ++i) {
    const std::uint8_t scale = from[i], minimum = from[4 + i], rest = from[8 + i];
    to.scale_multipliers[i] = static_cast<std::int8_t>(scale & 63);
    to.min_multipliers[i] = minimum & 63;
    to.scale_multipliers[4 + i] = static_cast<std::int8_t>((rest & 15) | (scale >> 2 & 48));
    to.min_multipliers[4 + i] = static_cast<std::uint8_t>((rest >> 4) | (minimum >> 2 & 48));
  }
}

void unpack_256(BlockFormat format, const std::uint8_t* from, UnpackedBlock& to) {
  to.offset = 0;
  to.num_groups = 8;
  to.scale = half_bits(from);
  to.minimum = half_bits(from + 2);
  unpack_scales(from + 4, to);
  const std::uint8_t* fifth = from + 16;
  const std::uint8_t* nibbles = format == BlockFormat::q5_k ? fifth + 32 : fifth;
  for (int run = 0; run < 4; ++run) unpack_nibbles(nibbles + 32 * run, 32, to.codes + 64 * run);
  for (int i = 0; format == BlockFormat::q5_k && i < 256; ++i)
    to.codes[i] = static_cast<std::uint8_t>(to.codes[i] | (fifth[i % 32] >> (i / 32) & 1) << 4);
}

void unpack_q6_k(const std::uint8_t* from, UnpackedBlock& to) {
  to.offset = 32;
  to.num_groups = 16;
  const std::uint8_t* high = from + 128;
  for (int half = 0; half < 2; ++half) unpack_nibbles(from + 64 * half, 64, to.codes + 128 * half);
  for (int i = 0; i < 256; ++i) {
    const int two_bits = high[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    to.codes[i] = static_cast<std::uint8_t>(to.codes[i] | two_bits << 4);
  }
  std::memcpy(to.scale_multipliers, from + 192, 16);
  std::memset(to.min_multipliers, 0, 16);
  to.scale = half_bits(from + 208);
}

}  // namespace

std::int64_t block_elements(BlockFormat format) { return kRows[static_cast<int>(format)].elements; }
std::size_t block_bytes(BlockFormat format) { return kRows[static_cast<int>(format)].bytes; }
std::string_view block_format_name(BlockFormat format) { return kRows[static_cast<int>(format)].name; }
std::optional<BlockFormat> block_format_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.format;
  return std::nullopt;
}

void unpack(BlockFormat format, const std::byte* block, UnpackedBlock& to) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(block);
  to.minimum = 0;
  if (format == BlockFormat::q6_k) {
    unpack_q6_k(from, to);
  } else if (block_elements(format) == 256) {
    unpack_256(format, from, to);
  } else {
    unpack_32(format, from, to);
  }
}

void dequantise(BlockFormat format, const std::byte* blocks, std::int64_t num_elements, float* to) {
  const std::int64_t size = block_elements(format);
  MSTAR_CHECK(num_elements % size == 0);
  UnpackedBlock block;
  for (std::int64_t at = 0; at < num_elements; at += size, blocks += block_bytes(format)) {
    unpack(format, blocks, block);
    const float scale = to_float(Half{block.scale}), minimum = to_float(Half{block.minimum});
    const int group_size = static_cast<int>(size) / block.num_groups;
    for (int group = 0; group < block.num_groups; ++group) {
      const float group_scale = scale * static_cast<float>(block.scale_multipliers[group]);
      const float group_minimum = minimum * static_cast<float>(block.min_multipliers[group]);
      for (int i = group * group_size; i < (group + 1) * group_size; ++i)
        *to++ = group_scale * static_cast<float>(block.codes[i] - block.offset) - group_minimum;
    }
  }
}

}  // namespace mstar
