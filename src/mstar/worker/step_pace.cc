#include "mstar/worker/step_pace.h"

#include <algorithm>

namespace mstar::worker {

void StepPace::add(int num_tokens, std::int64_t device_us, std::int64_t launch_us) {
  Times& device = device_[bucket(num_tokens)];
  device = {device_us, device.last_us};
  launch_ = {launch_us, launch_.last_us};
}

// Too short an estimate costs some of the wait's use, too long a one leaves the device idle.
std::int64_t StepPace::slack_us(int num_tokens) const {
  const auto known = device_.find(bucket(num_tokens));
  if (known == device_.end()) return 0;
  const std::int64_t shortest_us = std::min(known->second.last_us, known->second.before_us);
  const std::int64_t slack_us = shortest_us - std::max(launch_.last_us, launch_.before_us) - margin_us(shortest_us);
  return slack_us < kLeastSlackUs ? 0 : slack_us;
}

}  // namespace mstar::worker
