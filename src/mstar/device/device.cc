#include "mstar/device/device.h"

#include <algorithm>

#include "mstar/base/check.h"

namespace mstar {

void* Arena::take(std::size_t bytes) {
  const std::size_t start = (used_ + 255) & ~std::size_t{255};
  MSTAR_CHECK(start + bytes <= size_, "the step arena is smaller than the step's plan");
  used_ = start + bytes;
  peak_ = std::max(peak_, used_);
  return base_ + start;
}

}  // namespace mstar
