#include "process_group.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace mstar::apps {
namespace {

// The end of the server closes all sockets at once: whoever is still there after this has lost a rank.
constexpr std::chrono::milliseconds kGrace{200};

}  // namespace

std::string ProcessGroup::name_of(WorkerId worker) const {
  return "worker " + std::to_string(worker.value) + ", which works in step with this one,";
}

void ProcessGroup::receive(WorkerId from, std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (group_) return take(from, bytes);
  early_.emplace_back(from, std::move(bytes));
  came_.notify_all();
}

void ProcessGroup::take(WorkerId from, const std::string& bytes) {
  const auto at = std::find(workers_.begin(), workers_.end(), from);
  if (at == workers_.end()) return group_->end("a worker of no group spoke to it");
  auto message = readers_[static_cast<std::size_t>(at - workers_.begin())].decode(std::as_bytes(std::span(bytes)));
  if (!message) return group_->end(name_of(from) + " sent nonsense: " + message.error().message);
  auto* const entry = std::get_if<worker::LogEntry>(&*message);
  auto* const ack = std::get_if<worker::Ack>(&*message);
  if (entry && rank_ > 0) return group_->receive(rank_, std::move(*entry));
  if (ack && rank_ == 0 && ack->rank == at - workers_.begin()) return group_->receive(std::move(*ack));
  const auto* const end = std::get_if<worker::StepEnd>(&*message);
  group_->end(end ? end->reason : name_of(from) + " sent what is not its to send");
}

void ProcessGroup::on_gone(WorkerId worker) {
  std::this_thread::sleep_for(kGrace);
  const std::lock_guard lock(mutex_);
  if (!group_) return gone_.push_back(worker);
  if (std::find(workers_.begin(), workers_.end(), worker) != workers_.end()) group_->end(name_of(worker) + " is gone");
}

Result<std::string> ProcessGroup::wait_key(WorkerId leader, std::chrono::seconds timeout) {
  std::unique_lock lock(mutex_);
  const auto has_come = [&] {
    return std::any_of(early_.begin(), early_.end(), [&](const auto& each) { return each.first == leader; });
  };
  if (!came_.wait_for(lock, timeout, has_come)) return unavailable(name_of(leader) + " sent no key for their GPUs");
  const auto first = std::find_if(early_.begin(), early_.end(), [&](const auto& each) { return each.first == leader; });
  MSTAR_TRY_ASSIGN(worker::StepMessage message, worker::StepReader({}).decode(std::as_bytes(std::span(first->second))));
  early_.erase(first);
  if (auto* const key = std::get_if<worker::StepKey>(&message)) return std::move(key->bytes);
  return internal_error(name_of(leader) + " sent something else than a key for their GPUs");
}

Status ProcessGroup::send_key(const std::vector<WorkerId>& others, std::string key) {
  MSTAR_TRY_ASSIGN(const std::string bytes, worker::encode(worker::StepKey{std::move(key)}, {}));
  for (const WorkerId each : others)
    if (!send_(each, bytes)) return unavailable(name_of(each) + " is gone");
  return ok_status();
}

std::shared_ptr<worker::StepGroup> ProcessGroup::open(std::vector<WorkerId> workers, int rank,
                                                      std::vector<const graph::CompiledModel*> models, RankMesh mesh) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < workers.size(); ++i) readers_.emplace_back(models);
  workers_ = std::move(workers);
  rank_ = rank;
  models_ = std::move(models);
  group_ = std::make_shared<worker::StepGroup>(static_cast<int>(workers_.size()), std::move(mesh));
  group_->set_transport(this);
  for (const auto& [from, bytes] : std::exchange(early_, {})) take(from, bytes);
  for (const WorkerId each : gone_)
    if (std::find(workers_.begin(), workers_.end(), each) != workers_.end()) group_->end(name_of(each) + " is gone");
  return group_;
}

// A peer that cannot be reached is gone, and its socket says so.
void ProcessGroup::send_to(WorkerId worker, const std::string& bytes) { send_(worker, bytes); }

void ProcessGroup::log(const worker::LogEntry& entry) {
  const auto bytes = worker::encode(entry, models_);
  if (!bytes) return group_->end("an entry of the log cannot be sent: " + bytes.error().message);
  for (std::size_t rank = 1; rank < workers_.size(); ++rank)
    if (!send_(workers_[rank], *bytes)) return group_->end(name_of(workers_[rank]) + " is gone");
}

void ProcessGroup::acknowledge(const worker::Ack& ack) {
  if (const auto bytes = worker::encode(ack, models_)) send_to(workers_.front(), *bytes);
}

void ProcessGroup::end(const std::string& reason) {
  const auto bytes = worker::encode(worker::StepEnd{reason}, models_);
  for (std::size_t rank = 0; bytes && rank < workers_.size(); ++rank)
    if (static_cast<int>(rank) != rank_) send_to(workers_[rank], *bytes);
}

}  // namespace mstar::apps
