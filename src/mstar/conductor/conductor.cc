#include "mstar/conductor/conductor.h"

#include <algorithm>
#include <ctime>

#include "mstar/base/log.h"

namespace mstar::conductor {

using decl::PartitionRef;

Conductor::Conductor(ConductorOptions options, wire::Mesh& mesh)
    : options_(std::move(options)), mesh_(mesh), random_(options_.seed) {}

Conductor::~Conductor() {
  if (!thread_.joinable()) return;
  inbox_.push(Inbox(Stop{}));
  thread_.join();
}

void Conductor::start() {
  thread_ = std::thread([this] { run(); });
}

// ---- any thread --------------------------------------------------------------------------------------------------------

Result<RequestId> Conductor::submit(decl::ApiRequest request, std::shared_ptr<EventSink> sink) {
  if (draining_) return unavailable("the server is shutting down");
  {
    std::lock_guard lock(state_mutex_);
    if (!failure_.empty()) return unavailable(failure_);
  }
  Submit submit;
  const auto& served = options_.models;
  std::string known;
  std::uint32_t model = 0;
  for (; model < served.size(); ++model) {
    const auto& each = served[model];
    if (each.name == request.model || std::find(each.aliases.begin(), each.aliases.end(), request.model) != each.aliases.end()) break;
    known += (known.empty() ? "" : ", ") + each.name;
  }
  if (model == served.size() && request.model.empty() && served.size() == 1) model = 0;
  if (model == served.size())
    return std::move(invalid_request("the model '" + request.model + "' does not exist; this server has: " + known)).with_field("model");
  const decl::Decl& declaration = served[model].compiled->declaration();
  submit.model = model;
  submit.surface = declaration.surface_for(request.route);
  if (!submit.surface)
    return std::move(invalid_request("the model '" + served[model].name + "' does not serve " + std::string(decl::route_name(request.route))))
        .with_field("model");
  MSTAR_TRY_ASSIGN(decl::Intake intake, submit.surface->intake(request));
  const int allowed = options_.max_concurrent_requests + options_.max_queued_requests;
  if (num_submitted_.fetch_add(1) >= allowed) {
    num_submitted_.fetch_sub(1);
    return exhausted("the queue is full (" + std::to_string(options_.max_queued_requests) + " waiting); try again shortly");
  }
  submit.id = RequestId(next_id_.fetch_add(1));
  submit.params = std::make_shared<const decl::RequestParams>(std::move(intake.params));
  submit.inputs = std::move(intake.inputs);
  submit.num_prompt_tokens = intake.num_prompt_tokens;
  submit.sink = std::move(sink);
  const RequestId id = submit.id;
  if (!inbox_.push(Inbox(std::move(submit)))) return unavailable("the server is shutting down");
  return id;
}

std::vector<ServedModel> Conductor::models() const {
  std::vector<ServedModel> out;
  for (const auto& each : options_.models) {
    ServedModel model{.name = each.name, .aliases = each.aliases, .routes = {}, .created_s = std::time(nullptr)};
    for (const auto& surface : each.compiled->declaration().surfaces()) model.routes.push_back(surface.route);
    out.push_back(std::move(model));
  }
  return out;
}

RuntimeState Conductor::state() const {
  std::lock_guard lock(state_mutex_);
  RuntimeState out;
  out.draining = draining_;
  out.ready = ready_.size() == options_.workers.size() && failure_.empty() && !draining_;
  if (!failure_.empty()) {
    out.reason = failure_;
  } else if (draining_) {
    out.reason = "draining";
  } else if (!out.ready) {
    out.reason = std::to_string(ready_.size()) + " of " + std::to_string(options_.workers.size()) + " workers are ready";
  }
  return out;
}

std::string Conductor::metrics_text() const {
  Counters c;
  {
    std::lock_guard lock(state_mutex_);
    c = counters_;
  }
  std::string out;
  const auto line = [&](const char* type, const char* name, const char* help, const char* labels, std::int64_t value) {
    if (help) out += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
    out += std::string(name) + labels + " " + std::to_string(value) + "\n";
  };
  line("gauge", "mstar_requests_running", "Requests being worked on.", "", c.running);
  line("gauge", "mstar_requests_waiting", "Requests in the admission queue.", "", c.waiting);
  line("counter", "mstar_requests_total", "Requests that ended, by outcome.", "{outcome=\"finished\"}", c.finished);
  line("counter", "mstar_requests_total", nullptr, "{outcome=\"failed\"}", c.failed);
  line("counter", "mstar_requests_total", nullptr, "{outcome=\"cancelled\"}", c.cancelled);
  line("counter", "mstar_generated_tokens_total", "Tokens that counted in usage.", "", c.tokens);
  if (options_.worker_metrics) out += options_.worker_metrics();
  return out;
}

bool Conductor::drain(std::chrono::milliseconds timeout) {
  draining_ = true;
  std::unique_lock lock(state_mutex_);
  return state_changed_.wait_for(lock, timeout, [&] { return num_submitted_.load() == 0; });
}

Status Conductor::wait_ready(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_mutex_);
  const bool settled = state_changed_.wait_for(lock, timeout, [&] { return ready_.size() == options_.workers.size() || !failure_.empty(); });
  if (!failure_.empty()) return unavailable(failure_);
  if (!settled) return unavailable("the workers were not ready in time");
  return ok_status();
}

// ---- owner thread ------------------------------------------------------------------------------------------------------

void Conductor::run() {
  while (!stopping_) {
    for (auto& message : inbox_.wait_all(std::chrono::milliseconds(500))) {
      // An exception of a library in one message must not end the others' requests.
      try {
        if (auto* wired = std::get_if<wire::ToConductor>(&message)) on(std::move(*wired));
        if (auto* submit = std::get_if<Submit>(&message)) on(std::move(*submit));
        if (const auto* aborted = std::get_if<Abort>(&message)) on(*aborted);
        if (std::holds_alternative<Stop>(message)) stopping_ = true;
      } catch (const std::exception& error) {
        log_error("conductor: {}", error.what());
      }
    }
  }
  for (auto& [id, request] : requests_)
    if (!request->ended) request->submit.sink->on_event(Failed{unavailable("the server stopped")});
  for (auto& submit : waiting_) submit.sink->on_event(Failed{unavailable("the server stopped")});
}

Conductor::Request* Conductor::find(RequestId id) {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

void Conductor::on(Submit message) {
  waiting_.push_back(std::move(message));
  admit();
}

void Conductor::on(const Abort& message) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(), [&](const Submit& each) { return each.id == message.id; });
  if (it != waiting_.end()) {
    it->sink->on_event(Failed{cancelled("the request was aborted")});
    waiting_.erase(it);
    {
      std::lock_guard lock(state_mutex_);
      ++counters_.cancelled;
      counters_.waiting = static_cast<std::int64_t>(waiting_.size());
      num_submitted_.fetch_sub(1);
    }
    state_changed_.notify_all();
    return;
  }
  if (Request* request = find(message.id)) end(*request, Failed{cancelled("the request was aborted")});
}

void Conductor::on(wire::ToConductor message) {
  std::visit([this](auto&& each) { on(std::move(each)); }, std::move(message));
}

void Conductor::on(const wire::WorkerReady& message) {
  {
    std::lock_guard lock(state_mutex_);
    ready_.insert(message.worker);
  }
  state_changed_.notify_all();
}

void Conductor::on(const wire::WorkerFailed& message) {
  {
    std::lock_guard lock(state_mutex_);
    ready_.erase(message.worker);
    failure_ = "worker " + std::to_string(message.worker.value) + " is gone: " + message.error.message;
  }
  state_changed_.notify_all();
  std::vector<RequestId> hit;
  for (auto& [id, request] : requests_) {
    request->removing.erase(message.worker);
    if (request->workers.erase(message.worker)) hit.push_back(id);
  }
  for (const RequestId id : hit)
    if (Request* request = find(id)) end(*request, Failed{unavailable(failure_)});
}

void Conductor::admit() {
  while (!waiting_.empty() && requests_.size() < static_cast<std::size_t>(options_.max_concurrent_requests)) {
    Submit submit = std::move(waiting_.front());
    waiting_.pop_front();
    begin(std::move(submit));
  }
  std::lock_guard lock(state_mutex_);
  counters_.waiting = static_cast<std::int64_t>(waiting_.size());
  counters_.running = static_cast<std::int64_t>(requests_.size());
}

Result<std::shared_ptr<const graph::PlacedModel>> Conductor::place(Request& request) {
  const std::uint32_t model = request.submit.model;
  const ServedDeployment& served = options_.models[model];
  graph::RequestPlacement placement(*served.compiled, WorkerId());
  for (std::size_t g = 0; g < served.groups.size(); ++g) {
    const NodeGroup& group = served.groups[g];
    std::vector<WorkerId> best;
    int least = 0;
    for (const WorkerId replica : group.replicas) {
      const int load = options_.routing == Routing::random ? 0 : load_[{model, g, replica}];
      if (best.empty() || load < least) {
        best.clear();
        least = load;
      }
      if (load == least) best.push_back(replica);
    }
    const WorkerId chosen = best[best.size() == 1 ? 0 : random_() % best.size()];
    ++load_[{model, g, chosen}];
    request.replicas.emplace_back(g, chosen);
    for (const decl::ComponentRef component : group.components) placement.set(component, chosen);
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
  requests_.emplace(id, std::move(owned));
  auto placed = place(request);
  if (!placed) return end(request, Failed{std::move(placed.error())});
  request.placed = *placed;
  const graph::CompiledModel& compiled = request.placed->model();
  std::set<decl::PortRef> given;
  for (const auto& [port, values] : request.submit.inputs) given.insert(port);
  std::map<WorkerId, wire::AddRequest> adds;
  for (std::uint16_t p = 0; p < compiled.partitions().size(); ++p) {
    const PartitionRef ref(p);
    for (const WorkerId worker : request.placed->workers(ref)) adds[worker];
    for (const auto& [port, values] : request.submit.inputs)
      for (const WorkerId reader : request.placed->readers(ref, port))
        adds[reader].inputs.emplace_back(port, Values(values.begin(), values.end()));
    Partition partition;
    partition.plan = compiled.at(ref).plan(*request.submit.params);
    partition.progress = std::make_unique<graph::PartitionProgress>(request.placed, ref, given);
    request.partitions.push_back(std::move(partition));
  }
  for (auto& [worker, add] : adds) {
    request.workers.insert(worker);
    add.request = id;
    add.model = request.submit.model;
    add.params = request.submit.params;
    add.placement = request.placed->placement().table();
    mesh_.to_worker(worker, std::move(add));
  }
  const std::size_t num_partitions = request.partitions.size();
  for (std::size_t p = 0; p < num_partitions; ++p) {  // an early end may erase the request
    Request* const live = find(id);
    if (!live || live->ended) return;
    advance(*live, p);
  }
}

void Conductor::advance(Request& request, std::size_t p) {
  Partition& partition = request.partitions[p];
  const graph::PartitionProgress& progress = *partition.progress;
  std::map<decl::PortRef, decl::StreamCounts> streams;
  for (const auto& stream : request.placed->model().partitions()[p].streams) {
    decl::StreamCounts counts;
    counts.consumed = progress.consumed(stream.port);
    if (stream.producer.valid()) {
      const Partition& producer = request.partitions[stream.producer.value];
      counts.produced = producer.progress->produced(stream.port);
      counts.producer_done = producer.done;
    }
    streams[stream.port] = counts;
  }
  const decl::PlanView view{.params = *request.submit.params,
                            .finished = progress.finished(),
                            .num_walks = progress.num_walks(),
                            .kept = request.kept,
                            .streams = streams,
                            .loop_ends = progress.loop_ends(),
                            .num_tokens = progress.num_tokens()};
  auto decision = partition.plan->next(view);
  if (!decision) return end(request, Failed{std::move(decision.error())});
  if (const auto* done = std::get_if<decl::Done>(&*decision)) return finish_partition(request, p, done->finish);
  auto starts = partition.progress->begin(std::get<decl::NextWalk>(*decision));
  if (!starts) return end(request, Failed{std::move(starts.error())});
  for (auto& [worker, start] : *starts)
    mesh_.to_worker(worker, wire::PartitionMessage{request.submit.id, {PartitionRef(static_cast<std::uint16_t>(p)), std::move(start)}});
}

void Conductor::finish_partition(Request& request, std::size_t p, decl::Finish finish) {
  Partition& partition = request.partitions[p];
  partition.done = true;
  partition.finish = finish;
  for (const auto& [port, consumer] : partition.progress->out_streams()) {
    const WorkerId worker = request.placed->stream_worker(consumer, port);
    if (worker.valid())
      mesh_.to_worker(worker, wire::PartitionMessage{request.submit.id, {consumer, graph::StreamEnd{port, partition.progress->produced(port)}}});
  }
  Finished finished;
  for (const Partition& each : request.partitions) {
    if (!each.done) return;
    if (each.finish != decl::Finish::stop) finished.finish = each.finish;
    finished.usage.completion_tokens += each.progress->num_tokens();
  }
  finished.usage.prompt_tokens = request.submit.num_prompt_tokens;
  finished.metadata = std::move(request.metadata);
  finished.usage.audio_seconds = finished.metadata.get_number("duration", 0).value_or(0);
  end(request, std::move(finished));
}

void Conductor::on(wire::FragmentReport message) {
  Request* request = find(message.request);
  if (!request || request->ended) return;
  Partition& partition = request->partitions[message.partition.value];
  for (auto& [port, values] : message.kept) request->kept[port] = std::move(values);
  if (!partition.progress->on_fragment(message.worker, message.done) || partition.done) return;
  if (partition.progress->end_partition() || partition.progress->final_consumed()) {
    const auto& sampling = request->submit.params->sampling;
    const bool length = partition.progress->end_partition() && sampling.max_tokens >= 0 && partition.progress->num_tokens() >= sampling.max_tokens;
    return finish_partition(*request, message.partition.value, length ? decl::Finish::length : decl::Finish::stop);
  }
  advance(*request, message.partition.value);
}

void Conductor::on(wire::ClientValue message) {
  Request* request = find(message.request);
  if (!request || request->ended) return;
  const auto& port = request->placed->model().declaration().at(message.port);
  decl::ToClient travel;
  for (const auto& each : port.travel)
    if (const auto* to_client = std::get_if<decl::ToClient>(&each)) travel = *to_client;
  for (HostValue& value : message.values) {
    Result<decl::Chunk> chunk = decl::Chunk{travel.modality, travel.format, std::move(value), {}};
    if (request->submit.surface->emit) chunk = request->submit.surface->emit(message.port, chunk->value, *request->submit.params);
    if (!chunk) return end(*request, Failed{std::move(chunk.error())});
    // "metadata" says something of the whole answer: it waits for the terminal event.
    if (chunk->format == "metadata") {
      for (const auto& [name, each] : chunk->metadata.values()) request->metadata.set(name, each);
    } else {
      request->submit.sink->on_event(std::move(*chunk));
    }
  }
}

void Conductor::on(wire::RequestFailed message) {
  if (Request* request = find(message.request)) end(*request, Failed{std::move(message.error)});
}

void Conductor::end(Request& request, RequestEvent event) {
  if (request.ended) return;
  request.ended = true;
  {
    std::lock_guard lock(state_mutex_);
    if (const auto* finished = std::get_if<Finished>(&event)) {
      ++counters_.finished;
      counters_.tokens += finished->usage.completion_tokens;
    } else {
      ++(std::get<Failed>(event).error.code == Code::cancelled ? counters_.cancelled : counters_.failed);
    }
  }
  request.submit.sink->on_event(std::move(event));
  for (const WorkerId worker : request.workers)
    if (mesh_.to_worker(worker, wire::RemoveRequest{request.submit.id})) request.removing.insert(worker);
  if (request.removing.empty()) erase(request.submit.id);
}

void Conductor::on(const wire::Removed& message) {
  Request* request = find(message.request);
  if (!request || !request->ended) return;
  request->removing.erase(message.worker);
  if (request->removing.empty()) erase(message.request);
}

void Conductor::erase(RequestId id) {
  const auto it = requests_.find(id);
  for (const auto& [group, worker] : it->second->replicas) --load_[{it->second->submit.model, group, worker}];
  requests_.erase(it);
  {
    std::lock_guard lock(state_mutex_);
    num_submitted_.fetch_sub(1);
    counters_.running = static_cast<std::int64_t>(requests_.size());
  }
  state_changed_.notify_all();
  admit();
}

}  // namespace mstar::conductor
