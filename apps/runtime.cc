#include "runtime.h"

#include <algorithm>
#include <map>
#include <set>

#include "mstar/base/log.h"
#include "mstar/device/cpu/cpu_device.h"

namespace mstar::apps {

// Queues between threads of this process: a message is a push.
class Runtime::Mesh final : public wire::Mesh {
 public:
  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    return worker.value < workers.size() && workers[worker.value]->send(std::move(message));
  }
  void to_conductor(wire::ToConductor message) override { conductor->receive(std::move(message)); }

  std::vector<worker::Worker*> workers;
  conductor::Conductor* conductor = nullptr;
};

Result<OpenedModel> open_model(const ModelConfig& config) {
  OpenedModel out;
  models::ModelSource source{.name = config.model, .directory = config.model, .options = config.options};
  std::error_code ignored;
  const bool is_family = std::any_of(models::all_models().begin(), models::all_models().end(),
                                     [&](const auto& family) { return !family.needs_weights && family.name == config.model; });
  if (!is_family) {
    if (!std::filesystem::exists(source.directory, ignored)) {
      std::string known;
      for (const auto& family : models::all_models())
        if (!family.needs_weights) known += (known.empty() ? "" : ", ") + std::string(family.name);
      return bad_model("'" + config.model + "' is no directory or checkpoint file" + (known.empty() ? "" : ", nor one of: " + known));
    }
    MSTAR_TRY_ASSIGN(auto checkpoint, weights::Checkpoint::open(source.directory));
    source.checkpoint = std::move(checkpoint);
    if (!std::filesystem::is_directory(source.directory, ignored)) source.directory = source.directory.parent_path();
  }
  MSTAR_TRY_ASSIGN(out.family, models::find_family(source));
  source.name = config.name;
  auto declared = out.family->declare(source);
  if (!declared) return std::move(declared.error());
  out.decl = std::make_unique<const decl::Decl>(std::move(*declared));
  out.checkpoint = std::move(source.checkpoint);
  return out;
}

Runtime::Runtime(RuntimeConfig config) : config_(std::move(config)) {}

Runtime::~Runtime() {
  // The conductor stops first, so that nothing new reaches the workers; it stays until their last messages are out.
  if (conductor_) conductor_->stop();
  workers_.clear();
  conductor_.reset();
}

Result<std::unique_ptr<Runtime>> Runtime::build(RuntimeConfig config) {
  if (const std::string missing = missing_cpu_features(); !missing.empty())
    return unavailable("this processor lacks " + missing + ", which mstar needs on x86-64");
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(config)));
  MSTAR_TRY(runtime->load_models());
  MSTAR_TRY(runtime->start_workers());
  return runtime;
}

Status Runtime::load_models() {
  std::set<std::string> names;
  for (ModelConfig& each : config_.models) {
    if (each.name.empty()) {
      const std::filesystem::path path(each.model);
      each.name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
    }
    if (!names.insert(each.name).second) return bad_model("two models are served as '" + each.name + "'");
    MSTAR_TRY_ASSIGN(OpenedModel opened, open_model(each));
    Served served{.config = each, .checkpoint = std::move(opened.checkpoint), .decl = std::move(opened.decl), .compiled = nullptr};
    MSTAR_TRY_ASSIGN(auto compiled, graph::CompiledModel::compile(*served.decl));
    served.compiled = std::make_unique<const graph::CompiledModel>(std::move(compiled));
    models_.push_back(std::move(served));
  }
  return ok_status();
}

Status Runtime::start_workers() {
  device_ = make_cpu_device();
  pool_ = std::make_unique<ThreadPool>(make_cpu_plan(config_.num_threads).num_threads);
  host_pool_ = std::make_unique<worker::HostPool>(std::max(2, make_cpu_plan().num_threads));
  mesh_ = std::make_unique<Mesh>();

  // Ranks that some model uses; worker 0 is the host's.
  int num_ranks = 1;
  for (const Served& served : models_)
    for (const auto& group : served.config.node_groups)
      for (const int rank : group.ranks) num_ranks = std::max(num_ranks, rank + 1);
  conductor::ConductorOptions options{.max_concurrent_requests = config_.max_concurrent_requests,
                                      .max_queued_requests = config_.max_queued_requests,
                                      .routing = config_.routing};
  std::vector<worker::WorkerOptions> workers(static_cast<std::size_t>(num_ranks) + 1);
  const resource::PoolLimits limits{.max_requests = config_.max_concurrent_requests,
                                    .max_rows = std::max(1, config_.max_concurrent_requests),
                                    .max_tokens = 512};
  for (const Served& served : models_) {
    conductor::ServedDeployment deployment{
        .name = served.config.name, .aliases = served.config.aliases, .compiled = served.compiled.get(), .groups = {}};
    for (const std::string& alias : served.decl->aliases()) deployment.aliases.push_back(alias);
    std::map<std::string, std::size_t> group_of;
    for (std::size_t g = 0; g < served.config.node_groups.size(); ++g)
      for (const std::string& component : served.config.node_groups[g].components) {
        if (!served.decl->find_component(component).valid())
          return bad_model("model '" + served.config.name + "' has no component '" + component + "'");
        group_of[component] = g;
      }
    std::map<std::size_t, conductor::NodeGroup> groups;
    constexpr std::size_t kHost = ~std::size_t{0}, kRest = kHost - 1;
    for (std::uint16_t c = 0; c < served.decl->components().size(); ++c) {
      const auto& component = served.decl->components()[c];
      const auto found = group_of.find(component.name());
      const std::size_t g = component.on_host() ? kHost : found == group_of.end() ? kRest : found->second;
      groups[g].components.push_back(decl::ComponentRef(c));
    }
    for (auto& [g, group] : groups) {
      if (g == kHost) {
        group.replicas = {WorkerId(0)};
      } else if (g == kRest) {
        group.replicas = {WorkerId(1)};
      } else {
        for (const int rank : served.config.node_groups[g].ranks) group.replicas.push_back(WorkerId(static_cast<std::uint32_t>(rank) + 1));
      }
      deployment.groups.push_back(group);
    }
    for (auto& each : workers) each.models.push_back({.name = served.config.name, .compiled = served.compiled.get(), .checkpoint = served.checkpoint, .limits = limits});
    for (const auto& group : deployment.groups)
      for (const WorkerId replica : group.replicas)
        for (const decl::ComponentRef component : group.components)
          if (!served.decl->at(component).on_host()) workers[replica.value].models.back().components.push_back(component);
    options.models.push_back(std::move(deployment));
  }
  for (std::uint32_t w = 0; w < workers.size(); ++w) options.workers.push_back(WorkerId(w));
  options.worker_metrics = [this] { return worker_metrics(); };
  conductor_ = std::make_unique<conductor::Conductor>(std::move(options), *mesh_);
  mesh_->conductor = conductor_.get();
  for (std::uint32_t w = 0; w < workers.size(); ++w) {
    workers[w].id = WorkerId(w);
    workers[w].device = w == 0 ? nullptr : device_.get();
    workers[w].pool = pool_.get();
    workers[w].host_pool = host_pool_.get();
    workers_.push_back(std::make_unique<worker::Worker>(std::move(workers[w]), *mesh_));
    mesh_->workers.push_back(workers_.back().get());
  }
  conductor_->start();
  for (auto& each : workers_) MSTAR_TRY(each->start());
  return conductor_->wait_ready(std::chrono::seconds(600));
}

std::string Runtime::memory_report() const {
  std::string out;
  for (std::size_t w = 1; w < workers_.size(); ++w) {
    const worker::WorkerStats stats = workers_[w]->stats();
    out += fmt::format("rank {}: weights {} MiB, step arenas {} MiB", w - 1, stats.weight_bytes >> 20, stats.arena_bytes >> 20);
    for (const auto& [model, usage] : stats.resources)
      if (usage.bytes) out += fmt::format(", {} {} MiB ({} units)", usage.name, usage.bytes >> 20, usage.total);
    out += "\n";
  }
  return out;
}

namespace {

// As the Prometheus text format wants the value of a label.
std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// The samples of one metric, under one heading.
struct Metric {
  const char* name;
  std::string text;
  Metric(const char* metric, const char* type, const char* help) : name(metric), text(fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", metric, type, help)) {}
  void add(const std::string& labels, std::int64_t value) { text += fmt::format("{}{{{}}} {}\n", name, labels, value); }
};

}  // namespace

std::string Runtime::worker_metrics() const {
  Metric used("mstar_resource_used", "gauge", "Pages, slots or rows in use.");
  Metric total("mstar_resource_total", "gauge", "Pages, slots or rows there are.");
  Metric steps("mstar_steps_total", "counter", "Steps run.");
  Metric rows("mstar_step_rows_total", "counter", "Rows in these steps.");
  Metric replays("mstar_graph_replays_total", "counter", "Steps that were one launch of a captured graph.");
  Metric allocations("mstar_step_allocations_total", "counter", "Fresh device buffers that steps took.");
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    const worker::WorkerStats stats = workers_[w]->stats();
    for (const auto& [model, usage] : stats.resources) {
      const std::string labels = fmt::format("worker=\"{}\",model=\"{}\",resource=\"{}\"", w, label_value(model), usage.name);
      used.add(labels, usage.used);
      total.add(labels, usage.total);
    }
    for (const auto& [model, name, counters] : stats.components) {
      const std::string labels = fmt::format("worker=\"{}\",model=\"{}\",component=\"{}\"", w, label_value(model), name);
      steps.add(labels, counters.num_steps);
      rows.add(labels, counters.num_rows);
      replays.add(labels, counters.num_replays);
      allocations.add(labels, counters.num_allocations);
    }
  }
  return used.text + total.text + steps.text + rows.text + replays.text + allocations.text;
}

}  // namespace mstar::apps
