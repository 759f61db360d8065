// Memory for windows' mels, kept from one window to the next.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace mstar::models {

// Of a short window's mels most are zeros past its content, which a buffer that was used before has already. Thread:
// any.
class FeatureBuffers : public std::enable_shared_from_this<FeatureBuffers> {
 public:
  // Of each buffer. Make it by make_shared.
  FeatureBuffers(std::size_t rows, std::size_t row_bytes) : rows_(rows), row_bytes_(row_bytes) {}

  // [rows][row_bytes], of which only the first `content_bytes` of each row may be written; the others are 0. It comes
  // back when its last owner lets it go, who may outlive this.
  std::shared_ptr<std::byte> take(std::size_t content_bytes);
  std::size_t size_bytes() const { return rows_ * row_bytes_; }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t content_bytes = 0;  // of each row; what lies behind is 0
  };
  Buffer find();
  void give_back(Buffer buffer);

  const std::size_t rows_, row_bytes_;
  std::mutex mutex_;
  std::vector<Buffer> free_;  // the last one was used last
};

}  // namespace mstar::models
