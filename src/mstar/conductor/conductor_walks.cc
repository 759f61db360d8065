// From what the workers report to what runs next and what the client gets.
#include "mstar/conductor/conductor.h"

#include <algorithm>

#include "mstar/base/prefetch.h"

namespace mstar::conductor {
namespace {

// Parts of a message between asking for a request's memory, and for what that points to, and using it.
constexpr std::size_t kFar = 6, kNear = 3;
constexpr std::size_t kHotBytes = 128;  // of a request

}  // namespace

using decl::PartitionRef;

std::map<decl::PortRef, decl::StreamCounts> Conductor::stream_counts(const Request& request, std::size_t p) const {
  std::map<decl::PortRef, decl::StreamCounts> out;
  for (const auto& stream : request.placed->model().partitions()[p].streams) {
    decl::StreamCounts counts;
    counts.consumed = request.partitions[p].progress->consumed(stream.port);
    if (stream.producer.valid()) {
      const Partition& producer = request.partitions[stream.producer.value];
      counts.produced = producer.progress->produced(stream.port);
      counts.producer_done = producer.done;
    } else if (request.submit.client) {
      const ClientInputs::Counts sent = request.submit.client->counts(stream.port);
      counts.produced = sent.num_items;
      counts.producer_done = sent.done;
    }
    out[stream.port] = counts;
  }
  return out;
}

void Conductor::send_items(const Request& request, const ClientItems& items) {
  const auto& partitions = request.placed->model().partitions();
  for (std::uint16_t p = 0; p < partitions.size(); ++p) {
    const PartitionRef ref(p);
    if (partitions[p].find_stream(items.port) < 0 || request.partitions[p].done) continue;
    const WorkerId worker = request.placed->stream_worker(ref, items.port);
    if (!worker.valid()) continue;
    const auto send = [&](graph::Signal signal) {
      mesh_.to_worker(worker, wire::PartitionMessage{request.submit.id, {ref, std::move(signal)}});
    };
    if (!items.items.empty())
      send(graph::StreamItems{items.port, items.first_index, Values(items.items.begin(), items.items.end())});
    if (items.total >= 0) send(graph::StreamEnd{items.port, items.total});
  }
}

// What every reader of a client's stream has taken needs no memory any more.
void Conductor::note_consumed(const Request& request) const {
  std::map<decl::PortRef, std::int64_t> consumed;
  const auto& partitions = request.placed->model().partitions();
  for (std::size_t p = 0; p < partitions.size(); ++p)
    for (const auto& stream : partitions[p].streams) {
      if (!stream.from_client || request.partitions[p].done) continue;
      const std::int64_t taken = request.partitions[p].progress->consumed(stream.port);
      const auto [it, fresh] = consumed.try_emplace(stream.port, taken);
      if (!fresh) it->second = std::min(it->second, taken);
    }
  for (const auto& [port, taken] : consumed) request.submit.client->note_consumed(port, taken);
}

void Conductor::advance(Request& request, std::size_t p) {
  Partition& partition = request.partitions[p];
  const graph::PartitionProgress& progress = *partition.progress;
  const auto streams = stream_counts(request, p);
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
  const decl::WalkRef walk = std::get<decl::NextWalk>(*decision).walk;
  auto starts = partition.progress->begin(std::get<decl::NextWalk>(*decision));
  if (!starts) return end(request, Failed{std::move(starts.error())});
  const PartitionRef ref(static_cast<std::uint16_t>(p));
  if (!move_state(request, ref, walk)) return;
  for (auto& [worker, start] : *starts)
    mesh_.to_worker(worker, wire::PartitionMessage{request.submit.id, {ref, std::move(start)}});
}

// Whoever used a resource in the walk before has the request's state of it.
bool Conductor::move_state(Request& request, PartitionRef partition, decl::WalkRef walk) {
  std::map<std::pair<WorkerId, WorkerId>, std::vector<decl::ResourceRef>> moves;  // from, to
  for (const graph::StateUse& use : request.placed->moving_state(walk)) {
    const auto [at, is_first] = request.state_at.try_emplace(use.resource, use.worker);
    if (is_first || at->second == use.worker) continue;
    moves[{at->second, use.worker}].push_back(use.resource);
    at->second = use.worker;
  }
  for (auto& [way, resources] : moves) {
    const auto& [from, to] = way;
    const RequestId id = request.submit.id;
    mesh_.to_worker(to, wire::AwaitState{id, static_cast<std::uint32_t>(resources.size())});
    if (mesh_.to_worker(from, wire::HandOver{id, partition, std::move(resources), to})) continue;
    end(request,
        Failed{unavailable("worker " + std::to_string(from.value) + ", which has the request's state, is gone")});
    return false;
  }
  return true;
}

void Conductor::finish_partition(Request& request, std::size_t p, decl::Finish finish) {
  Partition& partition = request.partitions[p];
  partition.done = true;
  partition.finish = finish;
  for (const auto& [port, consumer] : partition.progress->out_streams()) {
    const WorkerId worker = request.placed->stream_worker(consumer, port);
    const graph::StreamEnd stream_end{port, partition.progress->produced(port)};
    if (worker.valid()) mesh_.to_worker(worker, wire::PartitionMessage{request.submit.id, {consumer, stream_end}});
  }
  decl::Finish all = decl::Finish::stop;
  for (const Partition& each : request.partitions) {
    if (!each.done) return;
    if (each.finish != decl::Finish::stop) all = each.finish;
  }
  if (request.emitter) {
    auto rest = request.emitter->finish(all);
    if (!rest) return end(request, Failed{std::move(rest.error())});
    for (decl::Chunk& chunk : rest->chunks) give(request, std::move(chunk));
    if (rest->stop) all = decl::Finish::stop;
  }
  finish_request(request, all);
}

void Conductor::finish_request(Request& request, decl::Finish finish) {
  Finished finished{.finish = finish};
  for (const Partition& each : request.partitions) finished.usage.completion_tokens += each.progress->num_tokens();
  if (request.emitter && request.emitter->num_tokens() >= 0)
    finished.usage.completion_tokens = request.emitter->num_tokens();
  finished.usage.prompt_tokens = request.submit.num_prompt_tokens;
  for (const auto& [worker, count] : request.cached_tokens)
    finished.usage.cached_tokens = std::max<std::int64_t>(finished.usage.cached_tokens, 0) + count;
  finished.metadata = std::move(request.metadata);
  finished.usage.audio_seconds = finished.metadata.get_number("duration", 0).value_or(0);
  end(request, std::move(finished));
}

void Conductor::on(wire::FragmentReport&& message) {
  Request* request = find(message.request);
  if (!request || request->ended || message.partition.value >= request->partitions.size()) return;
  Partition& partition = request->partitions[message.partition.value];
  for (auto& [port, values] : message.kept) request->kept[port] = std::move(values);
  if (message.cached_tokens >= 0) request->cached_tokens[message.worker] = message.cached_tokens;
  if (!partition.progress->on_fragment(message.worker, message.done) || partition.done) return;
  if (request->submit.client) note_consumed(*request);
  const bool stopped = partition.progress->end_partition();
  if (!stopped && !partition.progress->final_consumed()) return advance(*request, message.partition.value);
  const bool length = stopped && partition.progress->budget_spent();
  finish_partition(*request, message.partition.value, length ? decl::Finish::length : decl::Finish::stop);
}

// A worker in another process may say anything: of values there may be fewer than its parts name.
void Conductor::on(wire::ClientValues&& message) {
  std::span<HostValue> left(message.values);
  const auto& parts = message.parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const wire::ClientValues::Part& part = parts[i];
    if (i + kFar < parts.size()) prefetch_bytes(find(parts[i + kFar].request), kHotBytes);
    if (i + kNear < parts.size())
      if (const Request* const next = find(parts[i + kNear].request)) prefetch(next->submit.sink.get());
    const auto own = left.first(std::min<std::size_t>(part.num_values, left.size()));
    left = left.subspan(own.size());
    guarded(part.request, [&] { on_values(part, message.worker, own); });
  }
}

void Conductor::on_values(const wire::ClientValues::Part& part, WorkerId worker, std::span<HostValue> values) {
  Request* request = find(part.request);
  if (!request || request->ended) return;
  const decl::Decl& declaration = request->placed->model().declaration();
  if (part.port.value >= declaration.ports().size()) return;
  if (part.cached_tokens >= 0) request->cached_tokens[worker] = part.cached_tokens;
  if (request->emitter) return emit(*request, part.port, values);
  const decl::Surface& surface = *request->submit.surface;
  if (!surface.emit) {
    decl::ToClient travel;
    for (const auto& each : declaration.at(part.port).travel)
      if (const auto* to_client = std::get_if<decl::ToClient>(&each)) travel = *to_client;
    for (HostValue& value : values) give(*request, decl::Chunk{travel.modality, travel.format, std::move(value), {}});
    return;
  }
  for (const HostValue& value : values) {
    auto chunk = surface.emit(part.port, value, *request->submit.params);
    if (!chunk) return end(*request, Failed{std::move(chunk.error())});
    give(*request, std::move(*chunk));
  }
}

void Conductor::emit(Request& request, decl::PortRef port, std::span<const HostValue> values) {
  auto emitted = request.emitter->push(port, values);
  if (!emitted) return end(request, Failed{std::move(emitted.error())});
  for (decl::Chunk& chunk : emitted->chunks) give(request, std::move(chunk));
  if (emitted->stop) finish_request(request, decl::Finish::stop);
}

void Conductor::give(Request& request, decl::Chunk&& chunk) {
  // "metadata" says something of the whole answer: it waits for the terminal event.
  if (chunk.format == "metadata") {
    for (const auto& [name, each] : chunk.metadata.values()) request.metadata.set(name, each);
    return;
  }
  if ((request.modalities >> static_cast<unsigned>(chunk.modality)) & 1)
    request.submit.sink->on_event(std::move(chunk));
}

}  // namespace mstar::conductor
