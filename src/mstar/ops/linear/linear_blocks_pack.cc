#include <cstring>

#include "mstar/ops/linear/linear_blocks.h"

namespace mstar {
namespace {

constexpr int kPanel = LinearWeight::kPanel;

std::uint8_t* bytes_of(std::byte* p) { return reinterpret_cast<std::uint8_t*>(p); }
const std::uint8_t* bytes_of(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }

// Where byte `i` of word `word` of an output lies in a plane.
int plane_at(int word, int column, int i) { return (word * kPanel + column) * 4 + i; }

void put_codes(const BlockLayout& layout, const std::uint8_t* codes, int column, std::uint8_t* to) {
  std::uint8_t* high = to + layout.low_bytes();
  for (int word = 0; word < 8; ++word) {
    for (int i = 0; i < 4; ++i) {
      const int code = codes[word * 4 + i];
      if (layout.bits == 8) {
        to[plane_at(word, column, i)] = static_cast<std::uint8_t>(code);
        continue;
      }
      std::uint8_t& low = to[plane_at(word / 2, column, i)];
      low = static_cast<std::uint8_t>(low | (code & 15) << (word % 2 * 4));
      if (layout.bits == 4) continue;
      std::uint8_t& upper = high[plane_at(layout.bits == 6 ? word / 4 : 0, column, i)];
      upper = static_cast<std::uint8_t>(upper | (code >> 4) << (layout.bits == 6 ? word % 4 * 2 : word));
    }
  }
}

int get_code(const BlockLayout& layout, const std::uint8_t* from, int column, int at) {
  const int word = at / 4, i = at % 4;
  if (layout.bits == 8) return from[plane_at(word, column, i)];
  const std::uint8_t* high = from + layout.low_bytes();
  int code = (from[plane_at(word / 2, column, i)] >> (word % 2 * 4)) & 15;
  if (layout.bits == 5) code |= ((high[plane_at(0, column, i)] >> word) & 1) << 4;
  if (layout.bits == 6) code |= ((high[plane_at(word / 4, column, i)] >> (word % 4 * 2)) & 3) << 4;
  return code;
}

void put_half(std::uint8_t* halves, int column, std::uint16_t bits) { std::memcpy(halves + column * 2, &bits, 2); }
float get_half(const std::uint8_t* halves, int column) {
  Half half;
  std::memcpy(&half.bits, halves + column * 2, 2);
  return to_float(half);
}

}  // namespace

void put_block_row(BlockFormat format, const std::byte* blocks, std::int64_t num_inputs, int column, std::byte* panel) {
  const BlockLayout layout = block_layout(format);
  UnpackedBlock block;
  for (std::int64_t at = 0; at < num_inputs; at += block_elements(format)) {
    unpack(format, blocks, block);
    std::uint8_t* to = bytes_of(panel);
    put_half(to, column, block.scale);
    if (layout.has_min) put_half(to + 64, column, block.minimum);
    to += layout.header_bytes();
    for (int group = 0; group < layout.groups; ++group, to += layout.group_bytes()) {
      if (layout.groups > 1) {
        const int scale = layout.halves ? 2 * group : group;
        std::memcpy(to + column, &block.scale_multipliers[scale], 1);
        std::memcpy(to + kPanel + column,
                    layout.halves ? static_cast<const void*>(&block.scale_multipliers[scale + 1])
                                  : static_cast<const void*>(&block.min_multipliers[group]),
                    1);
      }
      put_codes(layout, block.codes + group * kGroupInputs, column, to + layout.multiplier_bytes());
    }
    blocks += block_bytes(format);
    panel += layout.step_bytes();
  }
}

void get_block_row(BlockFormat format, const std::byte* panel, std::int64_t num_inputs, int column, float* to) {
  const BlockLayout layout = block_layout(format);
  for (std::int64_t at = 0; at < num_inputs; at += block_elements(format), panel += layout.step_bytes()) {
    const std::uint8_t* from = bytes_of(panel);
    const float scale = get_half(from, column);
    const float minimum = layout.has_min ? get_half(from + 64, column) : 0.0f;
    from += layout.header_bytes();
    for (int group = 0; group < layout.groups; ++group, from += layout.group_bytes()) {
      const bool multiplied = layout.groups > 1;
      float scales[2] = {scale, scale}, low = minimum;
      if (layout.halves) {
        for (int half = 0; half < 2; ++half)
          scales[half] = scale * static_cast<float>(static_cast<std::int8_t>(from[half * kPanel + column]));
      } else if (multiplied) {
        scales[0] = scales[1] = scale * static_cast<float>(from[column]);
        low = minimum * static_cast<float>(from[kPanel + column]);
      }
      for (int i = 0; i < kGroupInputs; ++i) {
        const int code = get_code(layout, from + layout.multiplier_bytes(), column, i);
        *to++ = scales[i / 16] * static_cast<float>(code - layout.offset) - low;
      }
    }
  }
}

}  // namespace mstar
