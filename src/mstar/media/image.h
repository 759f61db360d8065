// Image encoding.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "mstar/base/result.h"

namespace mstar {

inline constexpr std::uint32_t kMaxImageSide = 16384;

// A PNG of `rgb`: height x width x 3 bytes, row-major, sRGB. Lossless, with no time or text inside: the same pixels
// give the same bytes with one build of libpng and zlib. Errors: invalid_request (a side outside 1 to kMaxImageSide, or
// a size that does not match), internal.
Result<std::string> encode_png(std::span<const std::uint8_t> rgb, std::uint32_t width, std::uint32_t height);

}  // namespace mstar
