#include "mstar/models/whisper/feature_buffers.h"

#include <cstring>
#include <utility>

namespace mstar::models {
namespace {
constexpr std::size_t kMostKept = 16;
}  // namespace

std::shared_ptr<std::byte> FeatureBuffers::take(std::size_t content_bytes) {
  Buffer buffer = find();
  if (buffer.content_bytes > content_bytes)
    for (std::size_t row = 0; row < rows_; ++row)
      std::memset(buffer.bytes.get() + row * row_bytes_ + content_bytes, 0, buffer.content_bytes - content_bytes);
  return {buffer.bytes.release(), [pool = shared_from_this(), content_bytes](std::byte* bytes) {
            pool->give_back({std::unique_ptr<std::byte[]>(bytes), content_bytes});
          }};
}

FeatureBuffers::Buffer FeatureBuffers::find() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Buffer last = std::move(free_.back());
      free_.pop_back();
      return last;
    }
  }
  return {std::make_unique_for_overwrite<std::byte[]>(size_bytes()), row_bytes_};
}

void FeatureBuffers::give_back(Buffer buffer) {
  std::lock_guard lock(mutex_);
  if (free_.size() < kMostKept) free_.push_back(std::move(buffer));
}

}  // namespace mstar::models
