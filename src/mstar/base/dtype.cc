#include "mstar/base/dtype.h"

#include <iterator>

namespace mstar {
namespace {
struct Row {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
};
constexpr Row kRows[] = {{DType::f32, "f32", 4},   {DType::f16, "f16", 2},     {DType::bf16, "bf16", 2},
                         {DType::i8, "i8", 1},     {DType::u8, "u8", 1},       {DType::i16, "i16", 2},
                         {DType::i32, "i32", 4},   {DType::i64, "i64", 8},     {DType::boolean, "bool", 1},
                         {DType::utf8, "utf8", 1}, {DType::bytes, "bytes", 1}, {DType::pcm, "pcm", 4}};
constexpr bool rows_in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i)
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  return static_cast<std::size_t>(DType::pcm) + 1 == std::size(kRows);
}
static_assert(rows_in_order(), "kRows is indexed by DType");
}  // namespace

std::size_t dtype_bytes(DType dtype) { return kRows[static_cast<int>(dtype)].bytes; }
std::string_view dtype_name(DType dtype) { return kRows[static_cast<int>(dtype)].name; }
std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

float to_float(Half v) {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (v.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = v.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

Half to_half(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const std::uint16_t sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds past 65504
  if (magnitude < 0x38800000u) {  // subnormal half: let float addition round at the right place
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace mstar
