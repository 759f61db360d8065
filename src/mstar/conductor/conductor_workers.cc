// Workers that an operator takes out of service and back.
#include <algorithm>

#include "mstar/conductor/conductor.h"

namespace mstar {

std::string_view worker_state_name(WorkerInfo::State state) {
  constexpr std::string_view kNames[] = {"starting", "warming", "running", "draining", "drained", "removed", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

namespace conductor {

bool Conductor::takes_requests(WorkerId worker) const {
  const auto standing = standings_.find(worker);
  return ready_.count(worker) &&
         (standing == standings_.end() || (!standing->second.drains && !standing->second.is_cold));
}

bool Conductor::takes_warmups(WorkerId worker) const {
  const auto standing = standings_.find(worker);
  return ready_.count(worker) && (standing == standings_.end() || !standing->second.drains);
}

void Conductor::note_takes(WorkerId worker) {
  const auto replicas = replicas_of_.find(worker);
  if (replicas == replicas_of_.end()) return;
  for (auto& [group, replica] : replicas->second) group->set_takes(replica, takes_requests(worker));
}

std::string Conductor::why_it_takes_none(WorkerId worker) const {
  const std::string who = "worker " + std::to_string(worker.value);
  if (const auto failure = failures_.find(worker); failure != failures_.end()) return failure->second;
  const auto found = standings_.find(worker);
  const Standing standing = found == standings_.end() ? Standing() : found->second;
  const auto rank = std::find(options_.ranks.begin(), options_.ranks.end(), worker) - options_.ranks.begin();
  const std::string resume = "POST /debug/workers/" + std::to_string(rank) + "/resume";
  if (standing.drains) return who + " was taken out of service; " + resume + " brings it back";
  if (!ready_.count(worker)) return who + " is not ready yet";
  if (standing.stays_cold) return who + " " + standing.cold_reason + "; " + resume + " tries it again";
  return who + " is warming up" + (standing.cold_reason.empty() ? "" : ": " + standing.cold_reason);
}

WorkerInfo Conductor::info_of(int rank) const {
  using State = WorkerInfo::State;
  const WorkerId worker = options_.ranks[static_cast<std::size_t>(leader_of(rank))];
  WorkerInfo out{.rank = rank, .state = State::running, .reason = {}, .num_requests = 0, .parts = {}};
  const auto found = standings_.find(worker);
  const Standing standing = found == standings_.end() ? Standing() : found->second;
  const auto failure = failures_.find(worker);
  out.num_requests = standing.num_requests;
  if (failure != failures_.end()) {
    out.state = State::failed;
    out.reason = failure->second;
  } else if (standing.is_removed) {
    out.state = State::removed;
  } else if (!ready_.count(worker)) {
    out.state = State::starting;
  } else if (standing.drains) {
    out.state = standing.num_requests > 0 ? State::draining : State::drained;
  } else if (standing.is_cold) {
    out.state = standing.stays_cold ? State::failed : State::warming;
    out.reason = standing.cold_reason;
  }
  for (const ServedDeployment& served : options_.models) {
    WorkerInfo::Part part{.model = served.name, .components = {}};
    for (const NodeGroup& group : served.groups) {
      if (std::find(group.replicas.begin(), group.replicas.end(), worker) == group.replicas.end()) continue;
      for (const decl::ComponentRef each : group.components) {
        const std::string& name = served.compiled->declaration().at(each).name();
        if (std::find(part.components.begin(), part.components.end(), name) == part.components.end())
          part.components.push_back(name);
      }
    }
    if (!part.components.empty()) out.parts.push_back(std::move(part));
  }
  return out;
}

std::vector<WorkerInfo> Conductor::workers() const {
  std::lock_guard lock(state_mutex_);
  std::vector<WorkerInfo> out;
  for (std::size_t rank = 0; rank < options_.ranks.size(); ++rank) out.push_back(info_of(static_cast<int>(rank)));
  return out;
}

Status Conductor::check_rank(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  if (rank < 0 || static_cast<std::size_t>(rank) >= options_.ranks.size())
    return invalid_request("there is no " + name + "; this server has " + std::to_string(options_.ranks.size()) +
                           ", counted from 0")
        .with_field("rank");
  if (leader_of(rank) != rank)
    return invalid_request(name + " follows rank " + std::to_string(leader_of(rank)) +
                           ", which leads them both: give the order to that one");
  return ok_status();
}

// From the moment that this returns no request is given to a worker that drains: choose_replica reads the same.
Result<WorkerInfo> Conductor::order_worker(int rank, WorkerOrder order) {
  MSTAR_TRY(check_rank(rank));
  const WorkerId worker = options_.ranks[static_cast<std::size_t>(rank)];
  // Also to one that is ready: it may have been told to let go a moment ago.
  const Ordered ordered{worker, order == WorkerOrder::resume};
  std::unique_lock lock(state_mutex_);
  Standing& standing = standings_[worker];
  if (order == WorkerOrder::resume) {
    standing.drains = standing.removes = standing.is_removed = standing.stays_cold = false;
  } else {
    standing.drains = true;
    standing.removes |= order == WorkerOrder::remove;
  }
  note_takes(worker);
  const WorkerInfo out = info_of(rank);
  lock.unlock();
  if (!inbox_.push(Inbox(ordered))) return unavailable("the server is shutting down");
  return out;
}

void Conductor::on(const Ordered& message) {
  if (message.loads) mesh_.to_worker(message.worker, wire::Load{});
  if (const auto warming = warmings_.find(message.worker); message.loads && warming != warmings_.end()) {
    warming->second.num_failed = 0;
    warming->second.due_us = clock_.now_us();
    std::lock_guard lock(state_mutex_);
    standings_[message.worker].stays_cold = false;  // the last try may have failed since the order
  }
  unload_if_left(message.worker);
}

void Conductor::count_request(WorkerId worker, int by) {
  bool is_left = false;
  {
    std::lock_guard lock(state_mutex_);
    Standing& standing = standings_[worker];
    standing.num_requests += by;
    is_left = standing.removes && standing.num_requests == 0;
  }
  if (is_left) unload_if_left(worker);
}

void Conductor::unload_if_left(WorkerId worker) {
  {
    std::lock_guard lock(state_mutex_);
    Standing& standing = standings_[worker];
    if (!standing.removes || standing.num_requests > 0 || !ready_.count(worker)) return;
    standing.is_removed = true;
    ready_.erase(worker);
    note_takes(worker);
  }
  forget_routes(worker);
  mesh_.to_worker(worker, wire::Unload{});
  state_changed_.notify_all();
}

}  // namespace conductor
}  // namespace mstar
