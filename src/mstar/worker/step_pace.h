// How long steps take, and so how long the one behind a running one may wait for rows that arrive meanwhile.
#pragma once

#include <cstdint>
#include <map>

namespace mstar::worker {

// Of one lane's steps of one kind. A step that is launched as soon as it can be starts when the one before it ends, but
// with the rows that were there when that one began; a request that comes a moment later waits for both. So the next
// one is built only in time for its launch to end with the running one. Cheap; thread: the worker's.
class StepPace {
 public:
  // Less than this is not worth a wait.
  static constexpr std::int64_t kLeastSlackUs = 300;
  // Left between the launch's end and the running step's: what times differ by from step to step.
  static constexpr std::int64_t margin_us(std::int64_t device_us) { return 100 + device_us / 32; }

  // A step of `num_tokens` ended: it had the device for `device_us`, and took the host `launch_us` to build and launch.
  void add(int num_tokens, std::int64_t device_us, std::int64_t launch_us);
  // Of a step of about `num_tokens`, from when it begins on the device until the next one should be built; 0: at once.
  std::int64_t slack_us(int num_tokens) const;

 private:
  struct Times {  // of the last two, 0 before they are
    std::int64_t last_us = 0, before_us = 0;
  };
  // Few tokens: each number of rows for itself, in eights.
  static int bucket(int num_tokens) { return num_tokens < 128 ? num_tokens / 8 : 16 + num_tokens / 128; }
  std::map<int, Times> device_;
  Times launch_;
};

}  // namespace mstar::worker
