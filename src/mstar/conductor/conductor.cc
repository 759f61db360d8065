// Requests from admission to removal.
#include "mstar/conductor/conductor.h"

#include <algorithm>
#include <ctime>
#include <exception>

#include "mstar/base/log.h"

namespace mstar::conductor {
namespace {

// Above this the memory of a turn's messages is given back.
constexpr std::size_t kKeptMessages = 4096;

// A sink that throws (a library of the server's) must not cost others their turn.
void tell(EventSink& sink, RequestEvent event) {
  try {
    sink.on_event(std::move(event));
  } catch (const std::exception& error) {
    log_error("conductor: an event was lost: {}", error.what());
  }
}

Error failed_by(const std::exception& error) {
  log_error("conductor: {}", error.what());
  return internal_error(std::string("the conductor failed: ") + error.what());
}

}  // namespace

Conductor::Conductor(ConductorOptions options, wire::Mesh& mesh)
    : options_(std::move(options)),
      mesh_(mesh),
      created_s_(std::time(nullptr)),
      random_(options_.seed),
      clock_(options_.clock ? *options_.clock : steady_clock_) {
  find_replicas();
  find_prompts();
  was_ready_ = options_.workers.empty();
}

Conductor::~Conductor() { stop(); }

void Conductor::start() {
  thread_ = std::thread([this] { run(); });
}

void Conductor::stop() {
  if (std::exchange(stopped_, true)) return;
  inbox_.push(Inbox(Stop{}));
  if (thread_.joinable()) thread_.join();
  draining_ = true;
  {
    std::lock_guard lock(submit_mutex_);
    inbox_.close();
  }
  for (auto& message : inbox_.take_all())
    if (auto* submit = std::get_if<Submit>(&message)) waiting_.push_back(std::move(*submit));
  requests_.for_each([](RequestId, const Request& request) {
    if (!request.ended) tell(*request.submit.sink, Failed{unavailable("the server stopped")});
  });
  for (auto& submit : waiting_) tell(*submit.sink, Failed{unavailable("the server stopped")});
  requests_.clear();
  waiting_.clear();
}

void Conductor::run() {
  constexpr std::chrono::microseconds kLongest(500000);
  while (!stopping_) {
    if (poll() || inbox_.look_until(awake_until_)) continue;
    const std::int64_t left_us = warmup_due_us().value_or(INT64_MAX) - clock_.now_us();
    inbox_.wait(std::clamp(std::chrono::microseconds(left_us), std::chrono::microseconds(0), kLongest));
  }
}

bool Conductor::poll() {
  inbox_.take_all(messages_);
  if (messages_.empty()) return !warmings_.empty() && advance_warmups();
  for (Inbox& message : messages_) on_inbox(message);
  messages_.clear();
  if (messages_.capacity() > kKeptMessages) messages_.shrink_to_fit();
  admit();
  if (!warmings_.empty()) advance_warmups();
  return true;
}

void Conductor::on_inbox(Inbox& message) {
  const auto* wired = std::get_if<wire::ToConductor>(&message);
  const RequestId request = wired ? wire::request_of(*wired) : RequestId();
  // What a plan, an emit or a library throws in one message ends that request, not the loop.
  guarded(request, [&] { std::visit([this](auto&& each) { on(std::move(each)); }, std::move(message)); });
}

void Conductor::on(Submit message) { waiting_.push_back(std::move(message)); }

void Conductor::on(Push message) {
  const auto it =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Submit& each) { return each.id == message.id; });
  if (it != waiting_.end()) {
    it->sent.push_back(std::move(message.items));
  } else if (const Request* request = find(message.id); request && !request->ended) {
    send_items(*request, message.items);
  }
}

void Conductor::on(const Abort& message) {
  const auto it =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Submit& each) { return each.id == message.id; });
  if (it != waiting_.end()) {
    fail_waiting(*it, cancelled("the request was aborted"));
    waiting_.erase(it);
  } else if (Request* request = find(message.id)) {
    end(*request, Failed{cancelled("the request was aborted")});
  }
}

void Conductor::on(wire::ToConductor&& message) {
  std::visit([this](auto&& each) { on(std::move(each)); }, std::move(message));
}

void Conductor::on(const wire::WorkerReady& message) {
  {
    std::lock_guard lock(state_mutex_);
    Standing& standing = standings_[message.worker];
    if (ready_.insert(message.worker).second && standing.was_ready) note_came_back(message.worker);
    failures_.erase(message.worker);
    was_ready_ |= ready_.size() == options_.workers.size();
    standing.was_ready = true;
    standing.is_removed = false;  // whoever begins has loaded all
    note_takes(message.worker);
  }
  state_changed_.notify_all();
  unload_if_left(message.worker);
}

void Conductor::on(const wire::WorkerFailed& message) {
  const std::string reason = "worker " + std::to_string(message.worker.value) + " is gone: " + message.error.message;
  {
    std::lock_guard lock(state_mutex_);
    ready_.erase(message.worker);
    failures_[message.worker] = reason;
    note_takes(message.worker);
  }
  forget_routes(message.worker);
  state_changed_.notify_all();
  std::vector<RequestId> hit;
  requests_.for_each([&](RequestId id, const Request& request) {
    if (std::count(request.workers.begin(), request.workers.end(), message.worker)) hit.push_back(id);
  });
  for (const RequestId id : hit) {
    Request& request = *find(id);
    const bool removes = std::erase(request.removing, message.worker) > 0;
    if (!request.ended || removes) count_request(message.worker, -1);
    std::erase(request.workers, message.worker);
    // If another life of the worker has begun already, the request may have reached that one.
    mesh_.to_worker(message.worker, wire::RemoveRequest{id});
    note_warmup_disturbed(request, message.worker);
    end(request, Failed{unavailable(reason)});
    erase_if_removed(id);
  }
}

void Conductor::on(wire::RequestFailed message) {
  if (Request* request = find(message.request)) end(*request, Failed{std::move(message.error)});
}

void Conductor::on(const wire::Removed& message) {
  Request* request = find(message.request);
  if (!request || !request->ended) return;
  if (std::erase(request->removing, message.worker) > 0) count_request(message.worker, -1);
  erase_if_removed(message.request);
}

void Conductor::admit() {
  while (!waiting_.empty() && requests_.size() < static_cast<std::size_t>(options_.max_concurrent_requests)) {
    Submit submit = std::move(waiting_.front());
    waiting_.pop_front();
    const RequestId id = submit.id;
    guarded(id, [&] { begin(std::move(submit)); });
  }
  note_numbers();
}

Result<std::shared_ptr<const graph::PlacedModel>> Conductor::place(Request& request) {
  const std::uint32_t model = request.submit.model;
  const ServedDeployment& served = options_.models[model];
  graph::RequestPlacement placement(*served.compiled, WorkerId());
  for (std::size_t g = 0; g < served.groups.size(); ++g) {
    MSTAR_TRY_ASSIGN(const std::size_t replica, choose_replica(request.submit, g));
    request.replicas.push_back(replica);
    const WorkerId chosen = served.groups[g].replicas[replica];
    for (const decl::ComponentRef component : served.groups[g].components) {
      if (served.groups[g].walks.empty()) placement.set(component, chosen);
      for (const decl::WalkRef walk : served.groups[g].walks) placement.set(component, walk, chosen);
    }
  }
  auto& placed = placements_[{model, placement.table()}];
  if (!placed) {
    MSTAR_TRY_ASSIGN(placed, graph::PlacedModel::place(*served.compiled, std::move(placement)));
  }
  return placed;
}

void Conductor::begin(Submit submit) {
  const RequestId id = submit.id;
  auto owned = std::make_unique<Request>();
  Request& request = *owned;
  request.submit = std::move(submit);
  if (const auto& wanted = request.submit.params->output_modalities; !wanted.empty()) {
    request.modalities = 0;
    for (const decl::Modality each : wanted) request.modalities |= 1u << static_cast<unsigned>(each);
  }
  requests_.insert(id, std::move(owned));
  auto placed = place(request);
  if (!placed) {
    note_warmup_disturbed(request, WorkerId());
    return end(request, Failed{std::move(placed.error())});
  }
  request.placed = *placed;
  if (request.submit.surface->emitter) request.emitter = request.submit.surface->emitter(*request.submit.params);
  const auto& partitions = request.placed->model().partitions();
  std::set<decl::PortRef> given;
  for (const auto& [port, values] : request.submit.inputs) given.insert(port);
  for (std::uint16_t p = 0; p < partitions.size(); ++p)
    request.partitions.push_back(
        {partitions[p].plan(*request.submit.params),
         std::make_unique<graph::PartitionProgress>(request.placed, decl::PartitionRef(p), given)});
  add_to_workers(request);
  for (const ClientItems& items : std::exchange(request.submit.sent, {})) send_items(request, items);
  for (std::size_t p = 0; p < partitions.size(); ++p) {
    Request* const live = find(id);  // a plan may end the request at once
    if (!live || live->ended) return;
    advance(*live, p);
  }
}

void Conductor::add_to_workers(Request& request) {
  std::map<WorkerId, wire::AddRequest> adds;
  for (std::uint16_t p = 0; p < request.partitions.size(); ++p) {
    const decl::PartitionRef ref(p);
    for (const WorkerId worker : request.placed->workers(ref)) adds[worker];
    for (const auto& [port, values] : request.submit.inputs)
      for (const WorkerId reader : request.placed->readers(ref, port)) {
        auto& inputs = adds[reader].inputs;
        const bool listed = std::any_of(inputs.begin(), inputs.end(),
                                        [&, wanted = port](const auto& each) { return each.first == wanted; });
        if (!listed) inputs.emplace_back(port, Values(values.begin(), values.end()));
      }
  }
  for (auto& [worker, add] : adds) {
    request.workers.push_back(worker);
    count_request(worker, 1);
    add.request = request.submit.id;
    add.model = request.submit.model;
    add.params = request.submit.params;
    add.placement = request.placed->placement().table();
    mesh_.to_worker(worker, std::move(add));
  }
}

void Conductor::end(Request& request, RequestEvent event) {
  if (request.ended) return;
  request.ended = true;
  const RequestId id = request.submit.id;
  if (request.submit.client) close_inputs(id);
  {
    std::lock_guard lock(state_mutex_);
    if (const auto* finished = std::get_if<Finished>(&event)) {
      ++counters_.finished;
      counters_.tokens += finished->usage.completion_tokens;
    } else {
      ++(std::get<Failed>(event).error.code == Code::cancelled ? counters_.cancelled : counters_.failed);
    }
  }
  tell(*request.submit.sink, std::move(event));
  request.submit.sink.reset();
  for (const WorkerId worker : request.workers) {
    if (mesh_.to_worker(worker, wire::RemoveRequest{id})) {
      request.removing.push_back(worker);
    } else {
      count_request(worker, -1);
    }
  }
  if (options_.stays_awake.count() > 0 && requests_.size() == 1)
    awake_until_ = std::chrono::steady_clock::now() + options_.stays_awake;
  erase_if_removed(id);
}

void Conductor::end_after(RequestId request, const std::exception& thrown) {
  Error failure = failed_by(thrown);
  if (Request* live = find(request)) end(*live, Failed{std::move(failure)});
}

void Conductor::fail_waiting(Submit& submit, Error error) {
  if (submit.client) close_inputs(submit.id);
  {
    std::lock_guard lock(state_mutex_);
    ++(error.code == Code::cancelled ? counters_.cancelled : counters_.failed);
    num_submitted_.fetch_sub(1);
  }
  tell(*submit.sink, Failed{std::move(error)});
  state_changed_.notify_all();
}

void Conductor::erase_if_removed(RequestId id) {
  const Request* const request = find(id);
  if (!request || !request->ended || !request->removing.empty()) return;
  {
    std::lock_guard lock(state_mutex_);
    release_replicas(*request);
    num_submitted_.fetch_sub(1);
  }
  requests_.erase(id);
  state_changed_.notify_all();
}

void Conductor::note_numbers() {
  std::lock_guard lock(state_mutex_);
  counters_.waiting = static_cast<std::int64_t>(waiting_.size());
  counters_.running = static_cast<std::int64_t>(requests_.size());
}

std::map<std::tuple<std::uint32_t, std::size_t, WorkerId>, int> Conductor::load() const {
  std::lock_guard lock(state_mutex_);
  std::map<std::tuple<std::uint32_t, std::size_t, WorkerId>, int> out;
  for (std::uint32_t model = 0; model < loads_.size(); ++model)
    for (std::size_t group = 0; group < loads_[model].size(); ++group) {
      const ReplicaLoads& loads = loads_[model][group];
      for (std::size_t i = 0; i < loads.size(); ++i)
        if (loads.load(i) > 0) out[{model, group, loads.worker(i)}] = loads.load(i);
    }
  return out;
}

}  // namespace mstar::conductor
