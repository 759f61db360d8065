#include "mstar/simulator/simulation.h"

#include <algorithm>
#include <deque>

#include "mstar/decl/decl.h"
#include "mstar/graph/compiled.h"
#include "mstar/models/toy/null_model.h"
#include "mstar/resource/resource.h"
#include "mstar/simulator/clients.h"
#include "mstar/simulator/event_queue.h"
#include "mstar/simulator/virtual_device.h"
#include "mstar/wire/messages.h"
#include "mstar/worker/worker.h"

namespace mstar::simulator {
namespace {

constexpr std::int64_t kStartNs = 1'000'000;  // every worker has said that it is ready
// How often a worker that builds its next step late looks again, as its thread does.
constexpr std::int64_t kLookNs = 100'000;
constexpr std::size_t kMaxGaps = 4'000'000;  // kept for percentiles; later ones are left out

std::int64_t ns(double us) { return static_cast<std::int64_t>(1000 * us); }

class Deployment {
 public:
  Deployment(const SimulatedDeployment& options, const SimulatedLoad& load)
      : options_(options), load_(load), source_(load), arrivals_(load.seed + 1) {}

  Status build();
  Result<SimulationReport> run();

 private:
  enum class Kind : std::uint8_t { submit, conductor, conductor_turn, worker, worker_turn };
  struct What {
    Kind kind = Kind::submit;
    std::uint32_t who = 0;   // the worker; the request
    std::uint32_t turn = 0;  // of a worker's turn: which one, the others are void
  };
  struct Port final : wire::Mesh {
    Deployment* owner = nullptr;
    std::uint32_t self = 0;
    bool to_worker(WorkerId worker, wire::ToWorker message) override {
      owner->send(worker, std::move(message));
      return true;
    }
    void to_conductor(wire::ToConductor message) override {
      std::vector<wire::ToConductor> one;
      one.push_back(std::move(message));
      all_to_conductor(one);
    }
    void all_to_conductor(std::vector<wire::ToConductor>& messages) override { owner->report(self, messages); }
  };
  struct Sink final : EventSink {
    Deployment* owner = nullptr;
    std::uint32_t request = 0;
    void on_event(RequestEvent event) override { owner->on_event(request, std::move(event)); }
  };
  struct Replica {
    VirtualClock clock;
    std::unique_ptr<VirtualDevice> device;
    Port port;
    std::unique_ptr<worker::Worker> worker;
    std::deque<wire::ToWorker> to_it;
    std::deque<std::vector<wire::ToConductor>> from_it;
    std::uint32_t turn = 0;  // the one that is planned
    std::int64_t turn_ns = -1;
  };

  Status build_workers(const resource::PoolLimits& limits);
  void send(WorkerId worker, wire::ToWorker message);
  void report(std::uint32_t worker, std::vector<wire::ToConductor>& messages);
  void on_event(std::uint32_t request, RequestEvent event);
  void plan_turn(Replica& replica, std::int64_t at_ns);
  void plan_conductor(std::int64_t at_ns);
  void send_request(std::int64_t at_ns);
  void plan_arrival(std::int64_t after_ns);
  void submit(std::uint32_t request, std::int64_t at_ns);
  void turn_worker(Replica& replica, std::int64_t at_ns);
  void turn_conductor(std::int64_t at_ns);
  void deliver_to_conductor(Replica& replica, std::int64_t at_ns);
  bool anything_left() const;
  int num_at_once() const {
    return load_.num_clients > 0 ? std::min(load_.num_clients, load_.num_requests) : load_.num_requests;
  }

  const SimulatedDeployment& options_;
  const SimulatedLoad& load_;
  RequestSource source_;
  std::mt19937_64 arrivals_;
  EventQueue<What> events_;
  std::unique_ptr<decl::Decl> decl_;
  std::unique_ptr<graph::CompiledModel> compiled_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  VirtualClock conductor_clock_;
  Port conductor_port_;
  double conductor_us_ = 0;  // work that waits for its next turn
  std::int64_t conductor_busy_ns_ = 0;
  bool conductor_planned_ = false;
  std::vector<Seen> seen_;
  std::vector<double> gaps_s_;
  std::unique_ptr<conductor::Conductor> conductor_;  // ends what is left of the requests, whose sinks are here
  std::int64_t num_events_ = 0;
};

Status Deployment::build() {
  if (options_.num_replicas < 1) return invalid_request("a deployment has one replica at least");
  if (load_.num_requests < 1) return invalid_request("a load has one request at least");
  if (load_.num_clients < 1 && !(load_.rate_per_s > 0))
    return invalid_request("a load needs clients, or a rate of requests");
  for (const auto& range : {load_.prompt_tokens, load_.reply_tokens})
    if (range.first < 1 || range.second < range.first || range.second > options_.context_tokens)
      return invalid_request("a load's numbers of tokens must be from 1 to the context");
  const int at_once = options_.max_concurrent_requests > 0 ? options_.max_concurrent_requests : num_at_once();
  // With random choices one may get far more than its share.
  const int own = std::min(at_once, 4 * ((at_once + options_.num_replicas - 1) / options_.num_replicas) + 16);
  models::TimedModel timed{.costs = std::make_shared<const models::StepCosts>(options_.costs),
                           .timer = std::make_shared<VirtualTimer>(),
                           .max_rows = options_.max_rows,
                           .context_tokens = options_.context_tokens,
                           .kv_tokens = options_.kv_tokens,
                           .prefix_cache = options_.prefix_cache};
  if (timed.kv_tokens == 0) {
    const std::int64_t longest = load_.prompt_tokens.second + 64 + load_.reply_tokens.second + 16;
    timed.kv_tokens = std::min<std::int64_t>(own, 2 * options_.max_rows) * longest;
  }
  decl_ = std::make_unique<decl::Decl>(models::declare_timed_model("null", timed));
  MSTAR_TRY_ASSIGN(auto compiled, graph::CompiledModel::compile(*decl_));
  compiled_ = std::make_unique<graph::CompiledModel>(std::move(compiled));
  conductor::ConductorOptions conducting{.max_concurrent_requests = at_once,
                                         .max_queued_requests = load_.num_requests,
                                         .routing = options_.routing,
                                         .prefix_excess = options_.prefix_excess,
                                         .seed = options_.seed};
  conductor::ServedDeployment served{.name = "null", .aliases = {}, .compiled = compiled_.get(), .groups = {}};
  conductor::NodeGroup group{.name = "null", .components = {decl::ComponentRef(0)}, .replicas = {}};
  for (int i = 0; i < options_.num_replicas; ++i) group.replicas.emplace_back(static_cast<std::uint32_t>(i));
  conducting.workers = group.replicas;
  served.groups.push_back(std::move(group));
  conducting.models.push_back(std::move(served));
  conductor_port_.owner = this;
  conductor_ = std::make_unique<conductor::Conductor>(std::move(conducting), conductor_port_);
  return build_workers({.max_requests = at_once,
                        .max_rows = std::min(options_.max_rows, at_once),
                        .max_tokens = options_.costs.step_tokens});
}

Status Deployment::build_workers(const resource::PoolLimits& limits) {
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(options_.num_replicas); ++i) {
    Replica& replica = *replicas_.emplace_back(std::make_unique<Replica>());
    replica.device = std::make_unique<VirtualDevice>(replica.clock, options_.costs.asynchronous);
    replica.port.owner = this;
    replica.port.self = i;
    worker::WorkerOptions options{
        .id = WorkerId(i), .device = replica.device.get(), .models = {}, .clock = &replica.clock};
    options.models.push_back({.name = "null",
                              .compiled = compiled_.get(),
                              .checkpoint = nullptr,
                              .components = {decl::ComponentRef(0)},
                              .limits = limits});
    replica.worker = std::make_unique<worker::Worker>(std::move(options), replica.port);
    MSTAR_TRY(replica.worker->load());
    plan_turn(replica, 0);
  }
  return ok_status();
}

void Deployment::send(WorkerId worker, wire::ToWorker message) {
  replicas_[worker.value]->to_it.push_back(std::move(message));
  events_.add(conductor_clock_.now_ns() + ns(options_.costs.message_us), {Kind::worker, worker.value});
}

void Deployment::report(std::uint32_t worker, std::vector<wire::ToConductor>& messages) {
  Replica& replica = *replicas_[worker];
  replica.from_it.push_back(std::move(messages));
  messages.clear();
  events_.add(replica.clock.now_ns() + ns(options_.costs.message_us), {Kind::conductor, worker});
}

void Deployment::plan_turn(Replica& replica, std::int64_t at_ns) {
  if (replica.turn_ns >= 0 && replica.turn_ns <= at_ns) return;
  replica.turn_ns = at_ns;
  events_.add(at_ns, {Kind::worker_turn, replica.port.self, ++replica.turn});
}

void Deployment::plan_conductor(std::int64_t at_ns) {
  if (std::exchange(conductor_planned_, true)) return;
  events_.add(std::max(at_ns, conductor_clock_.now_ns()), {Kind::conductor_turn});
}

// A client sends its request then.
void Deployment::send_request(std::int64_t at_ns) {
  const auto request = static_cast<std::uint32_t>(seen_.size());
  if (seen_.size() >= static_cast<std::size_t>(load_.num_requests)) return;
  seen_.push_back({.sent_ns = at_ns});
  events_.add(at_ns + ns(options_.costs.request_us), {Kind::submit, request});
}

// Open loop: the next one comes whatever became of those before.
void Deployment::plan_arrival(std::int64_t after_ns) {
  std::exponential_distribution<double> gap_s(load_.rate_per_s);
  send_request(after_ns + static_cast<std::int64_t>(1e9 * gap_s(arrivals_)));
}

void Deployment::submit(std::uint32_t request, std::int64_t at_ns) {
  if (load_.num_clients < 1) plan_arrival(seen_[request].sent_ns);
  auto sink = std::make_shared<Sink>();
  sink->owner = this;
  sink->request = request;
  const auto id = conductor_->submit(source_.next(), std::move(sink));
  if (!id) return on_event(request, Failed{id.error()});
  conductor_us_ += options_.costs.conductor_request_us;
  plan_conductor(at_ns);
}

void Deployment::on_event(std::uint32_t request, RequestEvent event) {
  Seen& seen = seen_[request];
  const std::int64_t at_ns = conductor_clock_.now_ns() + ns(options_.costs.event_us);
  if (std::holds_alternative<decl::Chunk>(event)) {
    if (seen.first_ns < 0) {
      seen.first_ns = at_ns;
    } else if (gaps_s_.size() < kMaxGaps) {
      gaps_s_.push_back(1e-9 * static_cast<double>(at_ns - seen.last_ns));
    }
    seen.last_ns = at_ns;
    ++seen.num_tokens;
    return;
  }
  ++seen.num_ends;
  seen.end_ns = at_ns;
  if (const auto* finished = std::get_if<Finished>(&event)) {
    seen.prompt_tokens = finished->usage.prompt_tokens;
    seen.cached_tokens = std::max<std::int64_t>(0, finished->usage.cached_tokens);
  } else {
    seen.failed = true;
  }
  if (load_.num_clients > 0) send_request(at_ns);
}

void Deployment::deliver_to_conductor(Replica& replica, std::int64_t at_ns) {
  std::vector<wire::ToConductor> messages = std::move(replica.from_it.front());
  replica.from_it.pop_front();
  for (const wire::ToConductor& each : messages)
    if (const auto* values = std::get_if<wire::ClientValues>(&each))
      conductor_us_ += options_.costs.conductor_chunk_us * static_cast<double>(values->parts.size());
  conductor_->receive_all(messages);
  plan_conductor(at_ns);
}

// What is done in a turn is there when the work for it is over.
void Deployment::turn_conductor(std::int64_t at_ns) {
  conductor_planned_ = false;
  conductor_clock_.wait_until_ns(at_ns);
  conductor_busy_ns_ += ns(conductor_us_);
  conductor_clock_.spend_us(std::exchange(conductor_us_, 0));
  conductor_->poll();
}

void Deployment::turn_worker(Replica& replica, std::int64_t at_ns) {
  replica.turn_ns = -1;
  replica.clock.wait_until_ns(at_ns);
  const bool worked = replica.worker->poll();
  const std::int64_t now_ns = replica.clock.now_ns();
  if (worked) {
    plan_turn(replica, now_ns);
  } else if (replica.device->busy_until_ns() > now_ns) {
    plan_turn(replica, std::min(now_ns + kLookNs, replica.device->busy_until_ns()));
  }
}

bool Deployment::anything_left() const {
  return !conductor_->load().empty() || std::any_of(replicas_.begin(), replicas_.end(), [](const auto& replica) {
    const wire::WorkerStats stats = replica->worker->stats();
    return stats.num_requests > 0 ||
           std::any_of(stats.pools.begin(), stats.pools.end(), [](const auto& pool) { return pool.used > 0; });
  });
}

Result<SimulationReport> Deployment::run() {
  seen_.reserve(static_cast<std::size_t>(load_.num_requests));
  for (int i = 0; i < std::min(load_.num_clients, load_.num_requests); ++i) send_request(kStartNs);
  if (load_.num_clients < 1) plan_arrival(kStartNs);
  while (!events_.empty()) {
    const auto next = events_.pop();
    ++num_events_;
    switch (next.what.kind) {
      case Kind::submit:
        submit(next.what.who, next.at_ns);
        break;
      case Kind::conductor:
        deliver_to_conductor(*replicas_[next.what.who], next.at_ns);
        break;
      case Kind::conductor_turn:
        turn_conductor(next.at_ns);
        break;
      case Kind::worker: {
        Replica& replica = *replicas_[next.what.who];
        replica.worker->send(std::move(replica.to_it.front()));
        replica.to_it.pop_front();
        plan_turn(replica, std::max(next.at_ns, replica.clock.now_ns()));
        break;
      }
      case Kind::worker_turn: {
        Replica& replica = *replicas_[next.what.who];
        if (next.what.turn == replica.turn) turn_worker(replica, next.at_ns);
        break;
      }
    }
  }
  if (anything_left()) return internal_error("the simulation ended with requests that are not gone");
  SimulationReport out = report_of(seen_, std::move(gaps_s_), kStartNs);
  double rows = 0, busy_s = 0;
  for (const auto& replica : replicas_) {
    const auto stats = replica->worker->stats();
    out.shares.push_back(stats.components.empty() ? 0 : static_cast<double>(stats.components.front().num_rows));
    rows += out.shares.back();
    busy_s += 1e-9 * static_cast<double>(replica->device->busy_ns());
  }
  for (double& share : out.shares) share /= std::max(1.0, rows);
  if (out.seconds > 0) {
    out.busy = busy_s / (out.seconds * options_.num_replicas);
    out.conductor_busy = 1e-9 * static_cast<double>(conductor_busy_ns_) / out.seconds;
  }
  out.num_events = num_events_;
  return out;
}

}  // namespace

Result<SimulationReport> simulate(const SimulatedDeployment& deployment, const SimulatedLoad& load) {
  Deployment made(deployment, load);
  MSTAR_TRY(made.build());
  return made.run();
}

}  // namespace mstar::simulator
