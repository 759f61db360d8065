// Element types of tensors and ports, and the conversions between the 16-bit floats and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mstar {

// `utf8`, `bytes`, `pcm` (float32 mono at a rate that the port names) are for host ports only.
enum class DType : std::uint8_t { f32, f16, bf16, i8, u8, i16, i32, i64, boolean, utf8, bytes, pcm };

// Bytes of one element; utf8 and bytes count 1, pcm counts 4.
std::size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
inline bool is_host_dtype(DType d) { return d == DType::utf8 || d == DType::bytes || d == DType::pcm; }

// IEEE half and bfloat16 as raw bits; arithmetic is done in float.
struct Half {
  std::uint16_t bits = 0;
};
struct BFloat16 {
  std::uint16_t bits = 0;
};

inline float to_float(BFloat16 v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16); }
// Rounds to nearest even; NaN stays NaN.
inline BFloat16 to_bfloat16(float f) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
float to_float(Half v);
Half to_half(float f);

}  // namespace mstar
