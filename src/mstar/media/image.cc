// The only caller of libpng, by its simplified interface: no longjmp crosses our frames.
#include "mstar/media/image.h"

#include <png.h>

namespace mstar {

Result<std::string> encode_png(std::span<const std::uint8_t> rgb, std::uint32_t width, std::uint32_t height) {
  if (width < 1 || height < 1 || width > kMaxImageSide || height > kMaxImageSide) {
    return invalid_request("an image of " + std::to_string(width) + " x " + std::to_string(height) +
                           " pixels cannot be encoded: each side must have 1 to " + std::to_string(kMaxImageSide));
  }
  if (rgb.size() != std::size_t{3} * width * height) {
    return invalid_request("an image of " + std::to_string(width) + " x " + std::to_string(height) +
                           " RGB pixels has " + std::to_string(std::size_t{3} * width * height) + " bytes, not " +
                           std::to_string(rgb.size()));
  }
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = PNG_FORMAT_RGB;
  std::string out(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t out_bytes = out.size();
  const int ok = png_image_write_to_memory(&image, out.data(), &out_bytes, 0, rgb.data(), 0, nullptr);
  if (!ok) return internal_error(std::string("libpng: ") + image.message);
  out.resize(out_bytes);
  return out;
}

}  // namespace mstar
