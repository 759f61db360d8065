// Tells a transfer that goes on from one that has stalled.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace mstar::server {

using SteadyTime = std::chrono::steady_clock::time_point;

// In each window at least the quota of bytes must move, whatever moved before; the next window begins as soon as it
// has. All of it must end within the limit. Plain arithmetic: reads no clock.
class TransferWatch {
 public:
  TransferWatch(std::chrono::milliseconds window, std::size_t min_bytes_per_s, std::chrono::milliseconds limit)
      : window_(window),
        limit_(limit),
        quota_bytes_(
            std::max<std::size_t>(1, min_bytes_per_s * static_cast<std::size_t>(window.count()) / std::size_t{1000})) {}

  // `bytes` were moved before.
  void begin(SteadyTime now, std::size_t bytes) {
    began_ = window_began_ = now;
    window_bytes_ = bytes;
  }
  // `bytes` have moved by now, those before begin() included.
  void moved_to(std::size_t bytes, SteadyTime now) {
    if (bytes < window_bytes_ + quota_bytes_) return;
    window_began_ = now;
    window_bytes_ = bytes;
  }
  SteadyTime deadline() const { return std::min(window_began_ + window_, began_ + limit_); }

 private:
  std::chrono::milliseconds window_, limit_;
  std::size_t quota_bytes_;
  SteadyTime began_, window_began_;
  std::size_t window_bytes_ = 0;  // moved when the window began
};

}  // namespace mstar::server
