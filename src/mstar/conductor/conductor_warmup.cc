// Workers that came back answer their warm-up requests before they get others.
#include <algorithm>

#include "mstar/base/log.h"
#include "mstar/conductor/conductor.h"

namespace mstar::conductor {

// Of one copy. Called by the owner thread, which goes on with the try once all copies have ended.
class Conductor::WarmupSink final : public EventSink {
 public:
  WarmupSink(Conductor& conductor, WorkerId worker, std::string name)
      : conductor_(conductor), worker_(worker), name_(std::move(name)) {}
  void on_event(RequestEvent event) override {
    if (std::holds_alternative<decl::Chunk>(event)) return;
    const auto found = conductor_.warmings_.find(worker_);
    if (found == conductor_.warmings_.end()) return;
    Warming& warming = found->second;
    --warming.num_running;
    if (auto* failed = std::get_if<Failed>(&event); failed && !warming.failure)
      warming.failure = std::move(failed->error).in(name_);
  }

 private:
  Conductor& conductor_;
  const WorkerId worker_;
  const std::string name_;
};

Status Conductor::set_warmup(const std::vector<WarmupCall>& calls) {
  SetWarmup out;
  for (const WarmupCall& call : calls) {
    MSTAR_TRY_ASSIGN(Submit submit, make_submit(call.request));
    out.requests.push_back({call.name, std::max(1u, call.num_copies), std::move(submit)});
  }
  if (!inbox_.push(Inbox(std::move(out)))) return unavailable("the server is shutting down");
  return ok_status();
}

void Conductor::on(SetWarmup message) {
  warmup_ = std::move(message.requests);
  std::lock_guard lock(state_mutex_);
  for (const WorkerId worker : std::exchange(came_back_, {}))
    if (ready_.count(worker)) note_came_back(worker);
}

// The copies that the worker had a part in when all were warmed.
std::vector<std::uint32_t> Conductor::copies_on(const Warmup& warmup, WorkerId worker) const {
  std::vector<std::uint32_t> out;
  const std::vector<NodeGroup>& groups = options_.models[warmup.submit.model].groups;
  for (std::uint32_t i = 0; i < warmup.num_copies; ++i)
    if (std::any_of(groups.begin(), groups.end(),
                    [&](const NodeGroup& group) { return group.replicas[i % group.replicas.size()] == worker; }))
      out.push_back(i);
  return out;
}

bool Conductor::is_warmed_by(WorkerId worker) const {
  return std::any_of(warmup_.begin(), warmup_.end(),
                     [&](const Warmup& each) { return !copies_on(each, worker).empty(); });
}

// Caller holds state_mutex_.
void Conductor::note_came_back(WorkerId worker) {
  if (!is_warmed_by(worker)) {
    came_back_.insert(worker);
    return;
  }
  standings_[worker].is_cold = true;
  note_takes(worker);
  Warming& warming = warmings_[worker];
  if (warming.at && !warming.failure) {  // what it has answered was answered by the life before
    warming.failure = unavailable("worker " + std::to_string(worker.value) + " began again in the middle of it");
    warming.disturbed = true;
  }
  warming.due_us = std::max(warming.due_us, clock_.now_us());
}

// A request of a worker's warm-up ends because another worker failed, or has no place though its own has not died.
void Conductor::note_warmup_disturbed(const Request& request, WorkerId by) {
  if (const auto found = warmings_.find(request.submit.warms); found != warmings_.end() && found->first != by) {
    std::lock_guard lock(state_mutex_);
    found->second.disturbed |= ready_.count(found->first) != 0;
  }
}

// What the request needs beside the worker. Caller holds state_mutex_.
std::string Conductor::why_no_warmup(const Warmup& warmup, WorkerId worker) const {
  for (const NodeGroup& group : options_.models[warmup.submit.model].groups) {
    const auto takes = [&](WorkerId each) { return each == worker || takes_warmups(each); };
    if (std::none_of(group.replicas.begin(), group.replicas.end(), takes))
      return "it waits for a worker that runs '" + group.name + "'";
  }
  return {};
}

// When a try may begin that nothing else holds up. Nothing: there is none.
std::optional<std::int64_t> Conductor::warmup_due_us() const {
  std::optional<std::int64_t> out;
  for (const auto& [worker, warming] : warmings_) {
    const bool waits = warming.at || warming.num_failed >= options_.most_warmup_tries;
    if (!waits) out = std::min(out.value_or(INT64_MAX), warming.due_us);
  }
  // One that is overdue waits for a message: of its worker, or of another one.
  if (out && *out <= clock_.now_us()) return std::nullopt;
  return out;
}

// True when a try began, went on or ended.
bool Conductor::advance_warmups() {
  bool any = false;
  std::vector<WorkerId> workers;
  for (const auto& each : warmings_) workers.push_back(each.first);
  for (const WorkerId worker : workers) any |= advance_warmup(worker, warmings_.at(worker));
  return any;
}

bool Conductor::advance_warmup(WorkerId worker, Warming& warming) {
  if (warming.num_running > 0) return false;
  if (draining_) warming.at.reset();  // nothing begins any more, and nobody takes it for warm
  if (!warming.at) return begin_warmup(worker, warming);
  if (warming.failure) {
    end_warmup_try(worker, warming);
  } else if (++*warming.at; !begin_warmup(worker, warming)) {
    note_warm(worker, warming);
    warmings_.erase(worker);
  }
  return true;
}

// The next request that the worker has a part in. False when there is none, or it cannot begin now.
bool Conductor::begin_warmup(WorkerId worker, Warming& warming) {
  const bool begins = !warming.at;
  if (begins && (draining_ || warming.num_failed >= options_.most_warmup_tries || clock_.now_us() < warming.due_us))
    return false;
  std::size_t at = warming.at.value_or(0);
  while (at < warmup_.size() && copies_on(warmup_[at], worker).empty()) ++at;
  if (at == warmup_.size()) return false;
  {
    std::lock_guard lock(state_mutex_);
    const std::string waits_for = why_no_warmup(warmup_[at], worker);
    if (begins && (!takes_warmups(worker) || !waits_for.empty())) {
      if (!waits_for.empty()) standings_[worker].cold_reason = waits_for;
      return false;
    }
    if (begins) standings_[worker].cold_reason.clear();
  }
  if (begins) warming.begun_us = clock_.now_us();
  warming.at = at;
  for (const std::uint32_t copy : copies_on(warmup_[at], worker)) {
    Submit submit = warmup_[at].submit;
    const std::string name = warmup_[at].name + "." + std::to_string(copy);
    submit.replica = copy;
    submit.warms = worker;
    submit.sink = std::make_shared<WarmupSink>(*this, worker, name);
    ++warming.num_running;
    num_submitted_.fetch_add(1);  // in line with all others, whatever its length
    // Requests reach the workers in the order of their ids.
    std::lock_guard lock(submit_mutex_);
    submit.id = RequestId(next_id_++);
    log_debug("{} on worker {} is request {}", name, worker.value, submit.id.value);
    inbox_.push(Inbox(std::move(submit)));
  }
  return true;
}

void Conductor::end_warmup_try(WorkerId worker, Warming& warming) {
  const std::string reason = std::exchange(warming.failure, {})->message;
  const bool disturbed = std::exchange(warming.disturbed, false);
  warming.at.reset();
  if (!disturbed) ++warming.num_failed;
  auto delay = options_.warmup_delay;
  for (int i = 1; i < warming.num_failed; ++i) delay *= 2;
  warming.due_us = clock_.now_us() + delay.count();
  const bool is_last = warming.num_failed >= options_.most_warmup_tries;
  std::lock_guard lock(state_mutex_);
  Standing& standing = standings_[worker];
  standing.stays_cold = is_last;
  standing.cold_reason = is_last ? "stays out of service, for its warm-up failed " +
                                       std::to_string(warming.num_failed) + " times, at last with: " + reason
                                 : "its warm-up failed (" + std::to_string(warming.num_failed) + " of " +
                                       std::to_string(options_.most_warmup_tries) + " times): " + reason;
  if (disturbed) standing.cold_reason = "its warm-up was cut off: " + reason;
  if (is_last) {
    log_error("worker {}: {}", worker.value, standing.cold_reason);
  } else {
    log_warn("worker {}: {}; tried again in {:g} s", worker.value, standing.cold_reason,
             std::chrono::duration<double>(delay).count());
  }
}

void Conductor::note_warm(WorkerId worker, const Warming& warming) {
  {
    std::lock_guard lock(state_mutex_);
    Standing& standing = standings_[worker];
    standing.is_cold = standing.stays_cold = false;
    standing.cold_reason.clear();
    note_takes(worker);
  }
  log_info("worker {}: warm after {:.2f} s, in service again", worker.value,
           1e-6 * static_cast<double>(clock_.now_us() - warming.begun_us));
  state_changed_.notify_all();
}

// On the worker that is to get warm wherever the copy was on it; beside it on whoever serves, or gets warm as well.
// Caller holds state_mutex_.
Result<WorkerId> Conductor::pick_for_warmup(const Submit& submit, std::size_t g) const {
  const std::vector<WorkerId>& replicas = options_.models[submit.model].groups[g].replicas;
  const WorkerId wanted = replicas[*submit.replica % replicas.size()];
  if (takes_requests(wanted) || (wanted == submit.warms && takes_warmups(wanted))) return wanted;
  if (wanted == submit.warms) return unavailable(why_it_takes_none(wanted));
  for (const WorkerId each : replicas)
    if (takes_requests(each)) return each;
  for (const WorkerId each : replicas)
    if (takes_warmups(each)) return each;
  return unavailable(why_not_served(submit.model));
}

}  // namespace mstar::conductor
