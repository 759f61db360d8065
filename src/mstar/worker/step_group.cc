#include "mstar/worker/step_group.h"

#include "mstar/base/check.h"
#include "mstar/base/log.h"

namespace mstar::worker {

StepGroup::StepGroup(int size, RankMesh mesh, std::uint64_t entries_per_state)
    : mesh_(std::move(mesh)), entries_per_state_(entries_per_state) {
  MSTAR_CHECK(size >= 1 && (mesh_.empty() || mesh_.size().num_ranks() == size),
              "the mesh of a group has its ranks, or there is none");
  for (int i = 1; i < size; ++i) followers_.push_back(std::make_unique<Queue<LogEntry>>());
}

void StepGroup::log(const LogEntry& entry) {
  if (transport_) return transport_->log(entry);
  for (const auto& each : followers_) each->push(entry);
}

std::optional<Ack> StepGroup::wait_ack() {
  if (!pump_) return acks_.pop();
  for (;;) {
    if (received_.empty()) received_ = acks_.take_all();
    if (!received_.empty()) {
      Ack first = std::move(received_.front());
      received_.erase(received_.begin());
      return first;
    }
    if (acks_.closed()) return std::nullopt;
    pump_();
  }
}

void StepGroup::end(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = reason;
  }
  log_error("ranks that work in step: {}", reason);
  mesh_.abort(reason);
  if (transport_) transport_->end(reason);
}

Status StepGroup::failure() const {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return unavailable(*ended_);
  }
  // A device may have found out by itself.
  return mesh_.failure();
}

void StepGroup::close() {
  for (const auto& each : followers_) each->close();
  acks_.close();
}

}  // namespace mstar::worker
