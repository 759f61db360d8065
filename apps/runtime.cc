#include "runtime.h"

#include <algorithm>
#include <map>
#include <set>

#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/cpu/shared_communicator.h"
#include "mstar/device/cuda/cuda_device.h"
#include "mstar/device/cuda/peer_communicator.h"
#include "mstar/engine/token_budget.h"
#include "placement_check.h"
#include "profile_report.h"

namespace mstar::apps {
namespace {
constexpr std::chrono::minutes kReadyTimeout{10};
constexpr std::chrono::hours kWatchedReadyTimeout{24};
constexpr std::size_t kTraceSpans = 65536;  // of a worker: some thousand steps

// Worker 0 is the host's.
WorkerId worker_of(int rank) { return WorkerId(static_cast<std::uint32_t>(rank) + 1); }
}  // namespace

// Queues between threads of this process, where a message is a push, and the sockets of other processes.
class Runtime::Mesh final : public wire::Mesh {
 public:
  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    if (groups && std::holds_alternative<wire::Load>(message) && groups->on_asked(worker)) return true;
    if (worker.value < workers.size()) return workers[worker.value] && workers[worker.value]->send(std::move(message));
    return processes && processes->send(worker, std::move(message));
  }
  void to_conductor(wire::ToConductor message) override {
    const Told told = groups ? told_by(message) : Told();
    conductor->receive(std::move(message));
    tell_groups(told);
  }
  void all_to_conductor(std::vector<wire::ToConductor>& messages) override {
    std::vector<Told> all;  // seldom any
    if (groups)
      for (const wire::ToConductor& each : messages)
        if (const Told told = told_by(each); told.worker.valid()) all.push_back(told);
    conductor->receive_all(messages);
    for (const Told& each : all) tell_groups(each);
  }

  std::vector<worker::Worker*> workers;  // null: a rank that only follows
  StepGroups* groups = nullptr;          // null: no ranks of this process work in step
  WorkerProcesses* processes = nullptr;
  conductor::Conductor* conductor = nullptr;

 private:
  struct Told {
    WorkerId worker;  // not valid: nothing that groups hear of
    bool is_ready = false;
  };
  static Told told_by(const wire::ToConductor& message) {
    if (const auto* const failed = std::get_if<wire::WorkerFailed>(&message)) return {failed->worker, false};
    if (const auto* const ready = std::get_if<wire::WorkerReady>(&message)) return {ready->worker, true};
    return {};
  }
  void tell_groups(const Told& told) const {
    if (!told.worker.valid()) return;
    if (told.is_ready) {
      groups->on_ready(told.worker);
    } else {
      groups->on_failed(told.worker);
    }
  }
};

Runtime::Runtime(RuntimeConfig config) : config_(std::move(config)) {}

Runtime::~Runtime() { stop_workers(); }

void Runtime::stop_workers() {
  frontend_.reset();
  // The conductor stops first, so that nothing new reaches the workers; it stays until their last messages are out.
  if (conductor_) conductor_->stop();
  if (groups_) groups_->stop_supervisor();
  for (auto& each : workers_)
    if (each) each->stop();      // all of them before the first is gone: they send to each other
  if (groups_) groups_->stop();  // after their leaders, which wait for them
  processes_.reset();
  workers_.clear();
  groups_.reset();
  conductor_.reset();
}

Result<std::unique_ptr<Runtime>> Runtime::build(RuntimeConfig config) {
  MSTAR_TRY(check_cpu_features());
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(config)));
  MSTAR_TRY(runtime->load_models());
  MSTAR_TRY(runtime->make_devices());
  MSTAR_TRY(runtime->fit_and_start());
  return runtime;
}

Status Runtime::make_devices() {
  if (config_.max_step_tokens == 0) config_.max_step_tokens = backend_ == Backend::cuda ? engine::kLongStep : 512;
  // Of several CUDA devices, each in its process, this process touches none.
  if (backend_ == Backend::cuda && config_.isolation == Isolation::process) return ok_status();
  for (int rank = 0; rank < (backend_ == Backend::cuda ? num_ranks() : 1); ++rank) {
    MSTAR_TRY_ASSIGN(auto device, make_device(backend_, cuda_index(config_, rank)));
    devices_.push_back(std::move(device));
  }
  return ok_status();
}

std::vector<const StepProfile*> Runtime::profiles() const {
  std::vector<const StepProfile*> out;
  for (const auto& each : profiles_) out.push_back(each.get());
  return out;
}

std::string Runtime::device_description() const {
  return devices_.empty() ? std::to_string(num_ranks()) + " CUDA devices" : devices_.front()->description();
}

Status Runtime::load_models() {
  MSTAR_TRY_ASSIGN(OpenedModels opened, open_models(config_));
  backend_ = opened.backend;
  num_ranks_ = apps::num_ranks(opened.models);
  MSTAR_TRY(check_devices(config_, backend_, num_ranks_, num_cuda_devices()));
  std::set<std::string> names;
  const auto take = [&](const std::string& name) -> Status {
    if (!names.insert(name).second)
      return bad_model("two models are served as '" + name + "'; give one of them another 'name'");
    return ok_status();
  };
  for (OpenedModel& each : opened.models) {
    MSTAR_TRY(take(each.config.name));
    for (const std::string& alias : each.config.aliases) MSTAR_TRY(take(alias));
    Served served{.opened = std::move(each), .compiled = nullptr};
    MSTAR_TRY_ASSIGN(auto compiled, graph::CompiledModel::compile(*served.opened.decl));
    served.compiled = std::make_unique<const graph::CompiledModel>(std::move(compiled));
    MSTAR_TRY(check_fragments(*served.compiled, served.opened.groups));
    for (const std::string& alias : served.opened.decl->aliases()) names.insert(alias);
    models_.push_back(std::move(served));
  }
  for (const std::string& wanted : config_.wanted_models) {
    if (wanted.empty() || names.count(wanted)) continue;
    std::string known;
    for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
    return invalid_request("a warmup request is for the model '" + wanted +
                           "', which is not served; there is: " + known);
  }
  return ok_status();
}

std::map<std::string, std::vector<std::size_t>> Runtime::num_replicas() const {
  std::map<std::string, std::vector<std::size_t>> out;
  for (const Served& served : models_) {
    std::vector<std::size_t>& counts = out[served.opened.config.name];
    for (const NodeGroup& group : served.opened.groups)
      if (!group.on_host()) counts.push_back(group.num_replicas());
  }
  return out;
}

// Adds the model to the workers that run a part of it.
conductor::ServedDeployment Runtime::deploy(const Served& served, std::vector<worker::WorkerOptions>& workers) const {
  const OpenedModel& opened = served.opened;
  conductor::ServedDeployment out{
      .name = opened.config.name, .aliases = opened.config.aliases, .compiled = served.compiled.get(), .groups = {}};
  for (const std::string& alias : opened.decl->aliases()) out.aliases.push_back(alias);
  for (worker::WorkerOptions& each : workers)
    each.models.push_back({.name = opened.config.name,
                           .compiled = served.compiled.get(),
                           .checkpoint = opened.checkpoint,
                           .components = {},
                           .limits = limits_of(config_)});
  for (const NodeGroup& group : opened.groups) {
    conductor::NodeGroup placed{.name = opened.decl->at(group.components.front()).name(),
                                .components = group.components,
                                .walks = group.walks,
                                .replicas = {}};
    if (group.on_host()) placed.replicas = {WorkerId(0)};
    for (const std::vector<int>& ranks : group.replica_ranks) {
      placed.replicas.push_back(worker_of(ranks.front()));
      if (ranks.size() == 1) continue;
      auto& in_step = workers[worker_of(ranks.front()).value].models.back().in_step;
      for (const decl::ComponentRef each : group.components)
        if (std::find(in_step.begin(), in_step.end(), each) == in_step.end()) in_step.push_back(each);
    }
    for (const int rank : group.ranks()) {
      auto& components = workers[worker_of(rank).value].models.back().components;
      for (const decl::ComponentRef each : group.components)
        if (std::find(components.begin(), components.end(), each) == components.end()) components.push_back(each);
    }
    out.groups.push_back(std::move(placed));
  }
  return out;
}

// Where cores are few, whoever looks for work takes one from whoever has it.
std::chrono::microseconds stays_awake(const RuntimeConfig& config) {
  constexpr int kManyCores = 8, kDefaultUs = 2000;
  const int by_cores = make_cpu_plan().num_threads >= kManyCores ? kDefaultUs : 0;
  return std::chrono::microseconds(config.stay_awake_us.value_or(by_cores));
}

Status Runtime::start_workers() {
  pool_ = std::make_unique<ThreadPool>(make_cpu_plan(config_.num_threads).num_threads);
  host_pool_ = std::make_unique<worker::HostPool>(std::max(2, make_cpu_plan().num_threads));
  mesh_ = std::make_unique<Mesh>();
  conductor::ConductorOptions options{.max_concurrent_requests = config_.max_concurrent_requests,
                                      .max_queued_requests = config_.max_queued_requests,
                                      .routing = config_.routing,
                                      .prefix_excess = config_.prefix_excess,
                                      .stays_awake = stays_awake(config_)};
  std::vector<worker::WorkerOptions> workers(static_cast<std::size_t>(num_ranks()) + 1);
  for (const Served& served : models_) options.models.push_back(deploy(served, workers));
  for (std::uint32_t w = 0; w < workers.size(); ++w) options.workers.push_back(WorkerId(w));
  for (int rank = 0; rank < num_ranks(); ++rank) {
    options.ranks.push_back(worker_of(rank));
    options.leaders.push_back(rank);
  }
  for (const Served& served : models_)
    for (const NodeGroup& group : served.opened.groups)
      for (const std::vector<int>& ranks : group.replica_ranks)
        for (const int rank : ranks) options.leaders[static_cast<std::size_t>(rank)] = ranks.front();
  options.worker_metrics = [this] { return worker_metrics(); };
  if (config_.profile.is_on()) options.profile_json = [this] { return apps::profile_json(profiles()); };
  conductor_ = std::make_unique<conductor::Conductor>(std::move(options), *mesh_);
  mesh_->conductor = conductor_.get();
  for (std::uint32_t w = 0; w < workers.size(); ++w) workers[w].id = WorkerId(w);
  conductor_->start();
  frontend_ = std::make_unique<conductor::SplitFrontend>(
      *conductor_,
      conductor::SplitOptions{.split = [this](const decl::ApiRequest& request) { return conductor_->split(request); },
                              .most_running = config_.max_concurrent_requests});
  MSTAR_TRY(config_.isolation == Isolation::thread ? start_in_threads(std::move(workers))
                                                   : start_in_processes(std::move(workers)));
  // Processes are watched while they load, however long that takes.
  const bool watched = processes_ && config_.load_timeout.count() > 0;
  return conductor_->wait_ready(watched ? kWatchedReadyTimeout : kReadyTimeout);
}

void Runtime::add_local(worker::WorkerOptions options) {
  options.pool = pool_.get();
  options.host_pool = host_pool_.get();
  options.stays_awake = stays_awake(config_);
  workers_.push_back(std::make_unique<worker::Worker>(std::move(options), *mesh_));
  mesh_->workers.push_back(workers_.back().get());
}

std::vector<Runtime::StepRanks> Runtime::ranks_in_step() const {
  std::map<std::vector<int>, StepRanks> out;
  for (const Served& served : models_)
    for (const NodeGroup& group : served.opened.groups)
      for (const std::vector<int>& ranks : group.replica_ranks) {
        if (ranks.size() == 1) continue;
        StepRanks& of = out.try_emplace(ranks, StepRanks{.ranks = ranks, .mesh = group.mesh}).first->second;
        for (const decl::ComponentRef each : group.components)
          of.together |= served.opened.decl->at(each).device().tensor_parallel;
      }
  std::vector<StepRanks> all;
  for (auto& each : out) all.push_back(std::move(each.second));
  return all;
}

// Only where there is something that the ranks compute together.
Result<RankMesh> Runtime::make_mesh(const StepRanks& of) const {
  if (!of.together) return RankMesh();
  if (backend_ == Backend::cpu) return RankMesh::of_threads(of.mesh);
  return RankMesh::create(of.mesh, [&](const std::vector<int>& members) {
    std::vector<Device*> devices;
    for (const int member : members)
      devices.push_back(devices_[static_cast<std::size_t>(of.ranks[static_cast<std::size_t>(member)])].get());
    return make_gpu_group(devices);
  });
}

Status Runtime::make_step_groups() {
  groups_ = std::make_unique<StepGroups>(
      StepGroupsOptions{.mesh = [this](const std::vector<int>& ranks) -> Result<RankMesh> {
                          for (const StepRanks& each : ranks_in_step())
                            if (each.ranks == ranks) return make_mesh(each);
                          return RankMesh();
                        },
                        .report = [this](wire::WorkerFailed message) { conductor_->receive(std::move(message)); },
                        .first_delay = config_.group_delay},
      *mesh_);
  const std::vector<StepRanks> all = ranks_in_step();
  for (const StepRanks& each : all) MSTAR_TRY(groups_->add(each.ranks));
  if (!all.empty()) mesh_->groups = groups_.get();
  return ok_status();
}

void Runtime::add_follower(const worker::WorkerOptions& options, int rank) {
  std::vector<worker::WorkerModel> models = options.models;
  for (worker::WorkerModel& each : models) each.in_step = each.components;
  groups_->set_follower(rank,
                        {.id = options.id, .device = options.device, .pool = pool_.get(), .models = std::move(models)});
  workers_.push_back(nullptr);
  mesh_->workers.push_back(nullptr);
}

std::shared_ptr<worker::StepGroup> Runtime::step_group(int leader) const {
  return groups_ ? groups_->led_by(leader) : nullptr;
}

Status Runtime::start_in_threads(std::vector<worker::WorkerOptions> workers) {
  profiles_.clear();
  MSTAR_TRY(make_step_groups());
  for (std::size_t w = 0; w < workers.size(); ++w) {
    workers[w].device = w == 0 ? nullptr : devices_[std::min(w, devices_.size()) - 1].get();
    if (w > 0 && config_.profile.is_on()) {
      profiles_.push_back(std::make_unique<StepProfile>(
          StepProfile::Options{.num_spans = config_.profile.trace_file.empty() ? 0 : kTraceSpans}));
      workers[w].profile = profiles_.back().get();
    }
    const int rank = static_cast<int>(w) - 1;
    if (groups_->follows(rank)) {
      add_follower(workers[w], rank);
      continue;
    }
    workers[w].group = groups_->led_by(rank);
    const bool leads = workers[w].group != nullptr;
    add_local(std::move(workers[w]));
    if (leads) groups_->set_leader(rank, *workers_.back());
  }
  // Ranks that compute together may have to load together.
  groups_->start_followers();
  Status started;
  for (auto& each : workers_)
    if (each && started) started = each->start();
  if (!started) groups_->end_all("a rank could not start: " + started.error().message);
  if (Status loaded = groups_->wait_loaded(); started && !loaded) started = std::move(loaded);
  return started;
}

wire::WorkerSetup Runtime::setup_of(const worker::WorkerOptions& worker, std::size_t num_processes) const {
  wire::WorkerSetup out{.worker = worker.id,
                        .device = cuda_index(config_, static_cast<int>(worker.id.value) - 1),
                        .on_cuda = backend_ == Backend::cuda};
  // The processes share this machine's cores.
  out.num_threads = std::max(1, pool_->num_threads() / static_cast<int>(num_processes));
  out.log_level = log_level_name();
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const ModelConfig& config = models_[m].opened.config;
    const auto& limits = worker.models[m].limits;
    out.models.push_back({.model = config.model,
                          .name = config.name,
                          .options = config.options,
                          .components = worker.models[m].components,
                          .max_requests = limits.max_requests,
                          .max_rows = limits.max_rows,
                          .max_tokens = limits.max_tokens,
                          .in_step = worker.models[m].in_step});
  }
  const int rank = static_cast<int>(worker.id.value) - 1;
  for (const StepRanks& of : ranks_in_step()) {
    if (std::find(of.ranks.begin(), of.ranks.end(), rank) == of.ranks.end()) continue;
    for (const int each : of.ranks) out.group.push_back(worker_of(each));
    out.computes_together = of.together;
    out.num_row_parts = of.mesh.sequence;
    if (rank != of.ranks.front())
      for (wire::WorkerSetup::Model& each : out.models) each.in_step = each.components;
  }
  return out;
}

// Pairs of device workers that one request may use both of, the smaller id first.
std::set<std::pair<WorkerId, WorkerId>> Runtime::links() const {
  std::set<std::pair<WorkerId, WorkerId>> out;
  for (const Served& served : models_)
    for (const NodeGroup& a : served.opened.groups)
      for (const NodeGroup& b : served.opened.groups)
        for (const int from : a.ranks())
          for (const int to : b.ranks())
            if (&a != &b && from < to) out.emplace(worker_of(from), worker_of(to));
  for (const StepRanks& of : ranks_in_step())
    for (const int from : of.ranks)
      for (const int to : of.ranks)
        if (from < to) out.emplace(worker_of(from), worker_of(to));
  return out;
}

Status Runtime::start_in_processes(std::vector<worker::WorkerOptions> workers) {
  WorkerProcessOptions options{.program = config_.worker_program,
                               .links = links(),
                               .hang_timeout = config_.hang_timeout,
                               .load_timeout = config_.load_timeout};
  for (std::size_t w = 1; w < workers.size(); ++w) options.setups.push_back(setup_of(workers[w], workers.size() - 1));
  if (backend_ == Backend::cpu)
    options.make_group_memory = [](MeshSize mesh) { return make_shared_groups(RankMesh::group_sizes(mesh)); };
  options.to_conductor = [this](wire::ToConductor message) { mesh_->to_conductor(std::move(message)); };
  options.to_worker = [this](WorkerId worker, wire::ToWorker message) { mesh_->to_worker(worker, std::move(message)); };
  processes_ = std::make_unique<WorkerProcesses>(std::move(options));
  mesh_->processes = processes_.get();
  add_local(std::move(workers[0]));
  MSTAR_TRY(workers_[0]->start());
  return processes_->start();
}

wire::WorkerStats Runtime::worker_stats(std::size_t worker) const {
  const WorkerId id(static_cast<std::uint32_t>(worker));
  if (auto follower = groups_ ? groups_->stats(id) : std::nullopt) return std::move(*follower);
  if (worker < workers_.size() && workers_[worker]) return workers_[worker]->stats();
  return processes_ ? processes_->stats(id) : wire::WorkerStats();
}

std::optional<pid_t> Runtime::worker_pid(int rank) const {
  return processes_ ? processes_->pid(worker_of(rank)) : std::nullopt;
}

// The step arenas of the built engines, and what only their captured graphs use.
std::vector<MemoryLine> Runtime::arena_lines() const {
  std::vector<MemoryLine> out;
  for (std::size_t w = 1; w < num_workers(); ++w) {
    const wire::WorkerStats stats = worker_stats(w);
    const int rank = static_cast<int>(w) - 1;
    if (stats.arena_bytes > 0) out.push_back({rank, "all", "working memory", "step arenas", stats.arena_bytes});
    if (stats.num_graphs > 0)
      out.push_back(
          {rank, "all", std::to_string(stats.num_graphs) + " graphs", "captured steps", stats.captured_bytes});
  }
  return out;
}

Status Runtime::fit_and_start() {
  std::vector<const OpenedModel*> opened;
  for (const Served& each : models_) opened.push_back(&each.opened);
  MSTAR_TRY_ASSIGN(const std::size_t budget, available_bytes(config_, backend_, num_ranks_));
  // How much working memory the engines want is known once they are built; where that breaks the plan, it is made
  // again.
  const auto sum = [](const std::vector<MemoryLine>& lines) { return MemoryPlan{.lines = lines}.total_bytes(); };
  for (std::vector<MemoryLine> reserved;;) {
    MSTAR_TRY_ASSIGN(memory_, fit_memory(opened, backend_, reserved, budget, config_));
    MSTAR_TRY(start_workers());
    std::vector<MemoryLine> arenas = arena_lines();
    memory_.lines.insert(memory_.lines.end(), arenas.begin(), arenas.end());
    if (memory_.fits() || sum(arenas) <= sum(reserved)) return ok_status();
    reserved = std::move(arenas);
    stop_workers();
  }
}

}  // namespace mstar::apps
