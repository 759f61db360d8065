#include "mstar/worker/step_group.h"

#include "mstar/base/check.h"
#include "mstar/base/log.h"

namespace mstar::worker {

StepGroup::StepGroup(int size, std::vector<std::unique_ptr<Communicator>> communicators,
                     std::uint64_t entries_per_state)
    : communicators_(std::move(communicators)), entries_per_state_(entries_per_state) {
  MSTAR_CHECK(size >= 1 && (communicators_.empty() || communicators_.size() == static_cast<std::size_t>(size)),
              "each rank of a group has one communicator, or none has");
  for (int i = 1; i < size; ++i) followers_.push_back(std::make_unique<Queue<LogEntry>>());
}

Communicator* StepGroup::communicator(int rank) const {
  return communicators_.empty() ? nullptr : communicators_[static_cast<std::size_t>(rank)].get();
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
  for (const auto& each : communicators_)
    if (each) each->abort(reason);
  if (transport_) transport_->end(reason);
}

Status StepGroup::failure() const {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return unavailable(*ended_);
  }
  // A device may have found out by itself.
  for (const auto& each : communicators_)
    if (each) return each->failure();
  return ok_status();
}

void StepGroup::close() {
  for (const auto& each : followers_) each->close();
  acks_.close();
}

}  // namespace mstar::worker
