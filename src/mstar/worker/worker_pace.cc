// When the next step is built: how long steps take (StepPace), and what that leaves for arrivals.
#include <algorithm>

#include "mstar/worker/worker.h"

namespace mstar::worker {

StepPace& Worker::pace_of(const Batch& batch) { return batch.lane->paces[static_cast<std::size_t>(batch.shape.kind)]; }

// Whether the next step should be built later, while the only one in flight still runs.
bool Worker::waits_for_arrivals() {
  if (in_flight_.size() != 1) return false;
  Batch& running = in_flight_.front();
  if (running.slack_us == 0) return false;
  if (clock_.now_us() - running.begun_us < running.slack_us && running.lane->engine->is_running(*running.step))
    return true;
  running.slack_us = 0;
  return false;
}

// While a step is held.
std::chrono::microseconds Worker::left_to_wait() const {
  if (in_flight_.empty()) return std::chrono::microseconds(0);
  const Batch& running = in_flight_.front();
  return std::chrono::microseconds(std::max<std::int64_t>(0, running.begun_us + running.slack_us - clock_.now_us()));
}

void Worker::note_launch(Batch& batch) {
  batch.launch_us = std::max<std::int64_t>(1, clock_.now_us() - batch.begun_us);
  batch.slack_us = slack_us(batch, false);
}

std::int64_t Worker::slack_us(const Batch& running, bool ended_walks) const {
  if (running.shape.kind != StepKind::prompt && !ended_walks) return 0;
  return pace_of(running).slack_us(running.shape.tokens);
}

// Waits for the device.
void Worker::note_end(Batch& batch) {
  batch.lane->engine->wait(*batch.step);
  const std::int64_t now_us = clock_.now_us();
  if (batch.launch_us > 0) pace_of(batch).add(batch.shape.tokens, now_us - batch.begun_us, batch.launch_us);
  if (!in_flight_.empty()) in_flight_.front().begun_us = std::max(in_flight_.front().begun_us, now_us);
}

}  // namespace mstar::worker
