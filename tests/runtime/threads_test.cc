// The same parts with their own threads: what a thread sanitizer must see.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "mstar/conductor/conductor.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/worker/toy_support_test.h"
#include "mstar/worker/worker.h"
#include "simulation.h"

namespace mstar {
namespace {

class Mesh final : public wire::Mesh {
 public:
  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    return workers[worker.value]->send(std::move(message));
  }
  void to_conductor(wire::ToConductor message) override { conductor->receive(std::move(message)); }
  std::vector<std::unique_ptr<worker::Worker>> workers;
  conductor::Conductor* conductor = nullptr;
};

class Sink final : public EventSink {
 public:
  void on_event(RequestEvent event) override {
    std::lock_guard lock(mutex_);
    if (auto* chunk = std::get_if<decl::Chunk>(&event)) {
      late_ |= num_terminal_ > 0;
      text_ += chunk->value.text();
      return;
    }
    ++num_terminal_;
    if (auto* failed = std::get_if<Failed>(&event)) error_ = std::move(failed->error);
    ended_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return num_terminal_ > 0; });
  }
  std::string text() {
    std::lock_guard lock(mutex_);
    return text_;
  }
  std::optional<Error> error() {
    std::lock_guard lock(mutex_);
    return error_;
  }
  bool ended_well() {
    std::lock_guard lock(mutex_);
    return num_terminal_ == 1 && !late_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::string text_;
  std::optional<Error> error_;
  int num_terminal_ = 0;
  bool late_ = false;
};

// Encoders on workers 1 and 2, decoders on 2 and 3; all host components on 0.
class Deployment {
 public:
  Deployment() : decl_(toy::language_model("lm")), pool_(2) {
    compiled_ = std::make_unique<graph::CompiledModel>(std::move(*graph::CompiledModel::compile(decl_)));
    conductor::ServedDeployment served{.name = "lm", .compiled = compiled_.get()};
    const auto group = [&](const std::vector<std::string>& names, std::vector<WorkerId> replicas) {
      conductor::NodeGroup out{.name = names.front(), .components = {}, .replicas = std::move(replicas)};
      for (const auto& name : names) out.components.push_back(decl_.find_component(name));
      served.groups.push_back(out);
    };
    group({"tokenise", "detokenise"}, {WorkerId(0)});
    group({"encoder"}, {WorkerId(1), WorkerId(2)});
    group({"decoder"}, {WorkerId(2), WorkerId(3)});
    conductor::ConductorOptions options{.models = {served}, .max_concurrent_requests = 8, .max_queued_requests = 1000};
    for (std::uint32_t w = 0; w < 4; ++w) options.workers.emplace_back(w);
    conductor_ = std::make_unique<conductor::Conductor>(options, mesh_);
    mesh_.conductor = conductor_.get();
    for (std::uint32_t w = 0; w < 4; ++w) {
      worker::WorkerModel model{
          .name = "lm", .compiled = compiled_.get(), .limits = {.max_requests = 8, .max_rows = 8, .max_tokens = 256}};
      if (w == 1 || w == 2) model.components.push_back(decl_.find_component("encoder"));
      if (w == 2 || w == 3) model.components.push_back(decl_.find_component("decoder"));
      if (sim::default_asynchronous()) {
        devices_.push_back(std::make_unique<engine::DeferredDevice>());
      } else {
        devices_.push_back(make_cpu_device());
      }
      worker::WorkerOptions each{
          .id = WorkerId(w), .device = w ? devices_[w].get() : nullptr, .pool = &pool_, .models = {model}};
      if (w == 0) each.host_pool = &host_;
      mesh_.workers.push_back(std::make_unique<worker::Worker>(each, mesh_));
    }
    conductor_->start();
    for (auto& each : mesh_.workers) EXPECT_TRUE(each->start());
    EXPECT_TRUE(conductor_->wait_ready(std::chrono::seconds(60)));
  }
  ~Deployment() {
    conductor_->stop();
    for (auto& each : mesh_.workers) each->stop();
    mesh_.workers.clear();
  }
  conductor::Conductor& conductor() { return *conductor_; }
  // Waits for the workers' statistics to say that nothing is held.
  bool becomes_empty() {
    for (int i = 0; i < 2000; ++i) {
      std::int64_t held = 0;
      for (const auto& each : mesh_.workers) {
        const auto stats = each->stats();
        held += stats.num_requests + static_cast<std::int64_t>(stats.num_early_signals);
        for (const auto& pool : stats.pools) held += pool.used;
      }
      if (held == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  decl::Decl decl_;
  std::vector<std::unique_ptr<Device>> devices_;  // by worker
  ThreadPool pool_;
  std::unique_ptr<graph::CompiledModel> compiled_;
  Mesh mesh_;
  std::unique_ptr<conductor::Conductor> conductor_;
  worker::HostPool host_{2};
};

TEST(Threads, RequestsOfManyThreadsAnswerAlikeAmongAbortsAndFailures) {
  Deployment deployment;
  struct Sent {
    std::shared_ptr<Sink> sink = std::make_shared<Sink>();
    std::string expected;
    bool disturbed = false;
  };
  std::vector<std::vector<Sent>> sent(3);
  std::vector<std::thread> clients;
  for (std::size_t c = 0; c < sent.size(); ++c)
    clients.emplace_back([&, c] {
      std::mt19937_64 random(c);
      for (int i = 0; i < 60; ++i) {
        Sent& each = sent[c].emplace_back();
        const std::string text = "client " + std::to_string(c) + ", " + std::to_string(i);
        const auto kind = random() % 6;
        auto request = toy::request("lm", text, 1 + static_cast<std::int64_t>(random() % 12), kind % 2 == 0);
        each.expected = toy::expected_text(text, request.fields.get_int("max_tokens", 0).value_or(0), kind % 2 == 0);
        each.disturbed = kind < 2;
        if (kind == 0) request.fields.set("fail", std::string(i % 2 ? "fail_row" : "detokenise"));
        const auto id = deployment.conductor().submit(std::move(request), each.sink);
        ASSERT_TRUE(id);
        if (kind == 1) deployment.conductor().abort(*id);
        if (random() % 8 == 0) each.sink->wait();
        (void)deployment.conductor().metrics_text();
      }
    });
  for (auto& client : clients) client.join();
  for (auto& list : sent)
    for (Sent& each : list) {
      each.sink->wait();
      EXPECT_TRUE(each.sink->ended_well());
      if (each.disturbed) continue;
      EXPECT_FALSE(each.sink->error()) << each.sink->error()->message;
      EXPECT_EQ(each.sink->text(), each.expected);
    }
  EXPECT_TRUE(deployment.conductor().drain(std::chrono::seconds(60)));
  EXPECT_TRUE(deployment.becomes_empty());
}

TEST(Threads, AStopInTheMiddleEndsEveryRequestOnce) {
  std::vector<std::shared_ptr<Sink>> sinks;
  {
    Deployment deployment;
    for (int i = 0; i < 40; ++i) {
      sinks.push_back(std::make_shared<Sink>());
      ASSERT_TRUE(
          deployment.conductor().submit(toy::request("lm", "stop " + std::to_string(i), 40, true), sinks.back()));
      if (i == 20) sinks[0]->wait();
    }
  }
  for (auto& sink : sinks) {
    sink->wait();
    EXPECT_TRUE(sink->ended_well());
  }
}

}  // namespace
}  // namespace mstar
