// The fields of each message in the order in which they travel, said once for writing and reading. Inside of the codec.
#pragma once

#include "mstar/wire/process_messages.h"

namespace mstar::wire {

// Io::Ref<T> is const T& for the writer and T& for the reader.
template <class Io>
struct Fields {
  template <class T>
  using Ref = typename Io::template Ref<T>;

  // ---- parts
  static void of(Io& io, Ref<Error> e) { io(e.code, e.message, e.field, e.reason, e.line); }
  static void of(Io& io, Ref<decl::SamplingParams> s) {
    io(s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty, s.seed, s.max_tokens, s.ignore_eos, s.stop_ids,
       s.presence_penalty, s.frequency_penalty, s.logit_bias, s.min_tokens, s.num_logprobs, s.stop_strings);
  }
  static void of(Io& io, Ref<decl::RequestParams> p) { io(p.sampling, p.output_modalities, p.fields, p.cache_salt); }
  static void of(Io& io, Ref<graph::LoopPath> path) { io(path.at, path.depth); }

  // ---- signals
  static void of(Io& io, Ref<graph::StartPass> s) {
    io(s.walk, s.pass, s.caps, s.flags, s.inputs, s.kept, s.stream_base, s.forget);
  }
  static void of(Io& io, Ref<graph::Delivery> s) { io(s.pass, s.edge, s.path, s.values); }
  static void of(Io& io, Ref<graph::KeptValue> s) { io(s.port, s.pass, s.values); }
  static void of(Io& io, Ref<graph::StreamItems> s) { io(s.port, s.first_index, s.items); }
  static void of(Io& io, Ref<graph::StreamEnd> s) { io(s.port, s.num_items); }
  static void of(Io& io, Ref<graph::LoopStop> s) { io(s.pass, s.loop, s.path); }
  static void of(Io&, Ref<graph::Removal>) {}
  static void of(Io& io, Ref<graph::PartitionSignal> s) { io(s.partition, s.signal); }
  static void of(Io& io, Ref<graph::FragmentLoopEnd> e) { io(e.loop, e.end, e.iterations); }
  static void of(Io& io, Ref<graph::FragmentDone> d) {
    io(d.walk, d.pass, d.loop_ends, d.kept, d.produced, d.consumed, d.num_tokens, d.final_consumed, d.end_partition,
       d.budget_spent, d.cancelled);
  }

  // ---- to a worker
  static void of(Io& io, Ref<AddRequest> m) { io(m.request, m.model, m.params, m.placement, m.inputs); }
  static void of(Io& io, Ref<PartitionMessage> m) { io(m.request, m.signal); }
  static void of(Io& io, Ref<CancelPartition> m) { io(m.request, m.partition, m.drop_streams); }
  static void of(Io& io, Ref<RemoveRequest> m) { io(m.request); }
  static void of(Io& io, Ref<HandOver> m) { io(m.request, m.partition, m.resources, m.to); }
  static void of(Io& io, Ref<AwaitState> m) { io(m.request, m.num_resources); }
  static void of(Io& io, Ref<StateParcel> m) { io(m.request, m.states); }
  static void of(Io&, Ref<Unload>) {}
  static void of(Io&, Ref<Load>) {}
  static void of(Io&, Ref<Shutdown>) {}

  // ---- to the conductor
  static void of(Io& io, Ref<WorkerReady> m) { io(m.worker); }
  static void of(Io& io, Ref<WorkerFailed> m) { io(m.worker, m.error); }
  static void of(Io& io, Ref<FragmentReport> m) {
    io(m.request, m.worker, m.partition, m.done, m.kept, m.cached_tokens);
  }
  static void of(Io& io, Ref<ClientValues::Part> p) { io(p.request, p.port, p.num_values, p.cached_tokens); }
  static void of(Io& io, Ref<ClientValues> m) { io(m.worker, m.parts, m.values); }
  static void of(Io& io, Ref<RequestFailed> m) { io(m.request, m.error); }
  static void of(Io& io, Ref<Removed> m) { io(m.request, m.worker); }

  // ---- between processes
  static void of(Io& io, Ref<PeerMessage> m) { io(m.to, m.message); }
  static void of(Io& io, Ref<PeerSocket> m) { io(m.worker); }
  static void of(Io& io, Ref<StepBytes> m) { io(m.bytes); }
  static void of(Io&, Ref<Ping>) {}
  static void of(Io& io, Ref<Pong> m) { io(m.num_turns); }
  static void of(Io& io, Ref<WorkerStats::Pool> p) {
    io(p.model, p.name, p.used, p.total, p.bytes, p.cached, p.num_preempted, p.found_tokens, p.num_snapshots);
  }
  static void of(Io& io, Ref<WorkerStats::Component> c) {
    io(c.model, c.name, c.num_steps, c.num_rows, c.num_tokens, c.num_replays, c.num_eager, c.num_allocations,
       c.num_ahead_rows, c.num_dropped_rows, c.num_host_syncs, c.num_piecewise, c.num_region_replays);
  }
  static void of(Io& io, Ref<WorkerStats> s) {
    io(s.pools, s.components, s.num_requests, s.num_early_signals, s.weight_bytes, s.arena_bytes, s.buffer_bytes,
       s.num_handed_over, s.handed_over_bytes, s.num_graphs, s.captured_bytes, s.num_states_in, s.state_in_bytes,
       s.state_wait_us);
  }
  static void of(Io& io, Ref<WorkerSetup::Model> m) {
    io(m.model, m.name, m.options, m.components, m.max_requests, m.max_rows, m.max_tokens, m.in_step);
  }
  static void of(Io& io, Ref<WorkerSetup> s) {
    io(s.worker, s.device, s.on_cuda, s.num_threads, s.log_level, s.models, s.group, s.computes_together,
       s.num_row_parts);
  }
};

}  // namespace mstar::wire
