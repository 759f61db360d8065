// Time as the runtime sees it. A simulated clock drives the property tests.
#pragma once

#include <chrono>
#include <cstdint>

namespace mstar {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary start; never goes back.
  virtual std::int64_t now_us() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_us() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now_us_; }
  void advance_us(std::int64_t us) { now_us_ += us; }

 private:
  std::int64_t now_us_ = 0;
};

}  // namespace mstar
