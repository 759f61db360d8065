#include "simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "mstar/engine/deferred_device_fixture.h"

namespace mstar::sim {

bool default_asynchronous() {
  const char* const device = std::getenv("MSTAR_SIM_DEVICE");
  return device && std::string(device) == "deferred";
}

int default_in_step() {
  const char* const ranks = std::getenv("MSTAR_SIM_IN_STEP");
  return ranks ? std::max(1, std::atoi(ranks)) : 1;
}

void Answer::on_event(RequestEvent event) {
  if (auto* chunk = std::get_if<decl::Chunk>(&event)) {
    num_chunks_after_end += num_terminal;
    pieces.emplace_back(chunk->value.text());
    text += chunk->value.text();
    return;
  }
  ++num_terminal;
  if (auto* done = std::get_if<Finished>(&event)) finished = std::move(*done);
  if (auto* failed = std::get_if<Failed>(&event)) error = std::move(failed->error);
}

bool Simulation::Port::to_worker(WorkerId worker, wire::ToWorker message) {
  if (worker.value >= owner->workers_.size() || !owner->workers_[worker.value]) return false;
  owner->links_[{self, worker.value}].emplace_back(std::move(message));
  return true;
}
void Simulation::Port::to_conductor(wire::ToConductor message) {
  owner->links_[{self, kConductor}].emplace_back(std::move(message));
}

namespace {

// Host components together on worker 0, device components by equal lists of replicas; those by walk each for itself.
std::vector<conductor::NodeGroup> groups_of(const decl::Decl& model, const ModelSpec& spec) {
  std::map<std::vector<std::uint32_t>, conductor::NodeGroup> groups;
  std::vector<conductor::NodeGroup> out;
  const auto add = [&](conductor::NodeGroup group, const std::vector<std::uint32_t>& workers) {
    for (const std::uint32_t worker : workers) group.replicas.emplace_back(worker);
    out.push_back(std::move(group));
  };
  for (std::uint16_t c = 0; c < model.components().size(); ++c) {
    const auto& component = model.components()[c];
    bool by_walk = false;
    for (const auto& [name, replicas] : spec.by_walk) {
      if (name.first != component.name()) continue;
      by_walk = true;
      conductor::NodeGroup group{
          .name = name.first, .components = {decl::ComponentRef(c)}, .walks = {}, .replicas = {}};
      group.walks.push_back(model.find_walk(name.second));
      std::vector<std::uint32_t> workers;
      for (const std::uint32_t replica : replicas) workers.push_back(replica + 1);
      add(std::move(group), workers);
    }
    if (by_walk) continue;
    const auto named = spec.replicas.find(component.name());
    std::vector<std::uint32_t> workers;
    if (component.on_host()) {
      workers = {0};
    } else if (named == spec.replicas.end()) {
      workers = {1};
    } else {
      for (const std::uint32_t replica : named->second) workers.push_back(replica + 1);
    }
    auto& group = groups[workers];
    group.name = component.name();
    group.components.push_back(decl::ComponentRef(c));
  }
  for (auto& [workers, group] : groups) add(std::move(group), workers);
  return out;
}

}  // namespace

Simulation::Simulation(Options options, std::vector<ModelSpec> models) : options_(options), random_(options.seed) {
  device_ = options.asynchronous ? std::make_unique<engine::DeferredDevice>() : make_cpu_device();
  conductor::ConductorOptions conducting{.max_concurrent_requests = options.max_concurrent_requests,
                                         .max_queued_requests = options.max_queued_requests,
                                         .seed = options.seed};
  worker_options_.resize(options.num_device_workers + 1);
  for (ModelSpec& spec : models) {
    decls_.push_back(std::make_unique<decl::Decl>(std::move(spec.decl)));
    auto compiled = graph::CompiledModel::compile(*decls_.back());
    if (!compiled) ADD_FAILURE() << compiled.error().message;
    compiled_.push_back(std::make_unique<graph::CompiledModel>(std::move(*compiled)));
    conductor::ServedDeployment served{.name = decls_.back()->name(), .compiled = compiled_.back().get()};
    served.groups = groups_of(*decls_.back(), spec);
    for (auto& each : worker_options_)
      each.models.push_back(
          {.name = served.name,
           .compiled = compiled_.back().get(),
           .limits = {.max_requests = options.max_concurrent_requests, .max_rows = 8, .max_tokens = 256}});
    for (const auto& group : served.groups)
      for (const WorkerId worker : group.replicas)
        for (const auto component : group.components)
          if (auto& components = worker_options_[worker.value].models.back().components;
              !decls_.back()->at(component).on_host() &&
              std::find(components.begin(), components.end(), component) == components.end())
            components.push_back(component);
    conducting.models.push_back(std::move(served));
  }
  for (std::uint32_t w = 0; w <= options.num_device_workers; ++w) conducting.workers.emplace_back(w);
  conductor_port_.owner = this;
  conductor_ = std::make_unique<conductor::Conductor>(std::move(conducting), conductor_port_);
  for (std::uint32_t w = 0; w <= options.num_device_workers; ++w) {
    ports_.push_back(std::make_unique<Port>());
    ports_.back()->owner = this;
    ports_.back()->self = w;
    worker_options_[w].id = WorkerId(w);
    worker_options_[w].device = w ? device_.get() : nullptr;
    worker_options_[w].host_pool = w ? nullptr : &host_;
    worker_options_[w].run_ahead = options.run_ahead;
    workers_.push_back(make_worker(w));
  }
  if (options.ready) run();
}

Simulation::~Simulation() {
  conductor_->stop();
  while (run_one_job()) {
  }
}

// Those of a worker that is started again are new too.
void Simulation::make_followers(std::uint32_t index) {
  worker::WorkerOptions& leader = worker_options_[index];
  leader.group = std::make_shared<worker::StepGroup>(options_.in_step);
  for (worker::WorkerModel& model : leader.models) model.in_step = model.components;
  for (int rank = 1; rank < options_.in_step; ++rank) {
    auto device = options_.asynchronous ? std::make_unique<engine::DeferredDevice>() : make_cpu_device();
    auto follower = std::make_unique<worker::StepFollower>(
        worker::StepFollowerOptions{
            .id = leader.id, .rank = rank, .device = device.get(), .models = leader.models, .group = leader.group},
        conductor_port_);
    if (const Status loaded = follower->load(); !loaded) ADD_FAILURE() << loaded.error().message;
    followers_.push_back(std::make_unique<Follower>(Follower{index, std::move(device), std::move(follower)}));
  }
  // The leader waits: any of them may go on.
  leader.group->set_pump([this, index, group = leader.group.get()] {
    std::vector<worker::StepFollower*> ranks;
    for (const auto& each : followers_)
      if (each->leader == index) ranks.push_back(each->rank.get());
    const std::size_t first = random_() % ranks.size();
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (ranks[(first + i) % ranks.size()]->replay_next()) return;
    ADD_FAILURE() << "a leader waits for ranks that have nothing to do; seed " << options_.seed;
    group->close();
  });
}

std::unique_ptr<worker::Worker> Simulation::make_worker(std::uint32_t index) {
  if (index > 0 && options_.in_step > 1) make_followers(index);
  auto made = std::make_unique<worker::Worker>(worker_options_[index], *ports_[index]);
  if (const Status loaded = made->load(); !loaded) ADD_FAILURE() << loaded.error().message;
  return made;
}

Simulation::Submitted Simulation::submit(decl::ApiRequest request) {
  auto answer = std::make_shared<Answer>();
  auto id = try_submit(std::move(request), answer);
  if (!id) {
    ADD_FAILURE() << id.error().message;
    return {RequestId(), answer};
  }
  return {*id, answer};
}

Result<RequestId> Simulation::try_submit(decl::ApiRequest request, std::shared_ptr<Answer> answer) {
  return conductor_->submit(std::move(request), std::move(answer));
}

std::size_t Simulation::num_messages() const {
  std::size_t count = 0;
  for (const auto& [ends, queue] : links_) count += queue.size();
  return count;
}

std::size_t Simulation::num_waiting_links() const {
  return static_cast<std::size_t>(
      std::count_if(links_.begin(), links_.end(), [](const auto& each) { return !each.second.empty(); }));
}

bool Simulation::deliver_one(std::size_t which) {
  for (auto& [ends, queue] : links_) {
    if (queue.empty() || which-- > 0) continue;
    Message message = std::move(queue.front());
    queue.pop_front();
    if (auto* wired = std::get_if<wire::ToConductor>(&message)) {
      conductor_->receive(std::move(*wired));
    } else if (workers_[ends.second]) {
      workers_[ends.second]->send(std::move(std::get<wire::ToWorker>(message)));
    }
    return true;
  }
  return false;
}

bool Simulation::replay_one(std::size_t which) { return followers_[which]->rank->replay_next(); }

bool Simulation::run_one_job() {
  if (host_.jobs.empty()) return false;
  const std::size_t which = random_() % host_.jobs.size();
  auto job = std::move(host_.jobs[which]);
  host_.jobs.erase(host_.jobs.begin() + static_cast<std::ptrdiff_t>(which));
  job();
  return true;
}

bool Simulation::step() {
  // Tries the kinds of action from a random one on until one had something to do.
  const std::size_t num_actors = workers_.size() + 1;
  const std::size_t num_links = num_waiting_links();
  const std::size_t num_followers = followers_.size();
  const std::size_t num_kinds = num_actors + num_links + num_followers + host_.jobs.size();
  const std::size_t first = random_() % num_kinds;
  for (std::size_t i = 0; i < num_kinds; ++i) {
    const std::size_t kind = (first + i) % num_kinds;
    bool worked = false;
    if (kind < workers_.size()) {
      worked = workers_[kind] && workers_[kind]->poll();
    } else if (kind < num_actors) {
      worked = conductor_->poll();
    } else if (kind < num_actors + num_links) {
      worked = deliver_one(kind - num_actors);
    } else if (kind < num_actors + num_links + num_followers) {
      worked = replay_one(kind - num_actors - num_links);
    } else {
      worked = run_one_job();
    }
    if (worked) return true;
  }
  return num_messages() > 0;  // a worker's first turn announces it
}

void Simulation::run(std::int64_t most) {
  while (step())
    if (--most == 0) {
      ADD_FAILURE() << "the simulation does not come to an end; seed " << options_.seed;
      return;
    }
}

void Simulation::expect_empty() {
  EXPECT_TRUE(conductor_->load().empty());
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w]) continue;
    const wire::WorkerStats stats = workers_[w]->stats();
    EXPECT_EQ(stats.num_requests, 0) << "worker " << w;
    EXPECT_EQ(stats.num_early_signals, 0u) << "worker " << w;
    for (const auto& pool : stats.pools)
      EXPECT_EQ(pool.used, 0) << "worker " << w << ", " << pool.model << "." << pool.name;
  }
  for (const auto& each : followers_) {
    const wire::WorkerStats stats = each->rank->stats();
    EXPECT_EQ(stats.num_requests, 0) << "a rank in step with worker " << each->leader;
    for (const auto& pool : stats.pools)
      EXPECT_EQ(pool.used, 0) << "a rank in step with worker " << each->leader << ", " << pool.model << "."
                              << pool.name;
    if (!workers_[each->leader]) continue;
    EXPECT_TRUE(worker_options_[each->leader].group->failure().ok());
    const auto led = workers_[each->leader]->stats().components;
    ASSERT_EQ(stats.components.size(), led.size());
    for (const auto& own : stats.components)
      EXPECT_TRUE(std::any_of(led.begin(), led.end(), [&](const auto& other) {
        return other.model == own.model && other.name == own.name && other.num_steps == own.num_steps &&
               other.num_rows == own.num_rows && other.num_dropped_rows == own.num_dropped_rows;
      })) << own.name;
  }
}

wire::WorkerStats::Component Simulation::total(const std::string& name) const {
  wire::WorkerStats::Component sum;
  for (const auto& each : workers_) {
    if (!each) continue;
    for (const auto& component : each->stats().components) {
      if (component.name != name) continue;
      sum.num_steps += component.num_steps;
      sum.num_rows += component.num_rows;
      sum.num_ahead_rows += component.num_ahead_rows;
      sum.num_dropped_rows += component.num_dropped_rows;
    }
  }
  return sum;
}

void Simulation::kill_worker(WorkerId worker) {
  workers_[worker.value].reset();
  std::erase_if(followers_, [&](const auto& each) { return each->leader == worker.value; });
  for (auto& [ends, queue] : links_)
    if (ends.second == worker.value) queue.clear();
  // What it had sent arrives; the notice of its death comes last.
  links_[{worker.value, kConductor}].emplace_back(
      wire::ToConductor(wire::WorkerFailed{worker, unavailable("killed by signal 9")}));
}

void Simulation::restart_worker(WorkerId worker) { workers_[worker.value] = make_worker(worker.value); }

}  // namespace mstar::sim
