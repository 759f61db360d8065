// One worker alone, with the toy language model: the test plays the conductor and the host pool. For tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mstar/base/clock.h"
#include "mstar/worker/toy_support_test.h"
#include "mstar/worker/worker.h"

namespace mstar::worker {

struct RecordingMesh final : wire::Mesh {
  std::vector<wire::ToConductor> sent;
  std::vector<std::pair<WorkerId, wire::ToWorker>> to_workers;
  bool to_worker(WorkerId worker, wire::ToWorker message) override {
    to_workers.emplace_back(worker, std::move(message));
    return true;
  }
  void to_conductor(wire::ToConductor message) override { sent.push_back(std::move(message)); }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> out;
    for (const auto& message : sent)
      if (const auto* each = std::get_if<T>(&message)) out.push_back(*each);
    return out;
  }
};

struct ManualHost final : HostExecutor {
  std::vector<std::function<void()>> jobs;
  void submit(std::function<void()> job) override { jobs.push_back(std::move(job)); }
  void run_all() {
    for (auto& job : std::exchange(jobs, {})) job();
  }
};

// The toy language model, whole on one worker.
class LoneWorker : public ::testing::Test {
 protected:
  explicit LoneWorker(std::unique_ptr<Device> device, bool run_ahead = true, bool walks_apart = false,
                      StepProfile* profile = nullptr)
      : decl_(toy::language_model("lm", 7, walks_apart)), device_(std::move(device)) {
    auto compiled = graph::CompiledModel::compile(decl_);
    EXPECT_TRUE(compiled);
    compiled_.emplace(std::move(*compiled));
    WorkerModel model{
        .name = "lm", .compiled = &*compiled_, .limits = {.max_requests = 2, .max_rows = 8, .max_tokens = 256}};
    for (std::uint16_t c = 0; c < decl_.components().size(); ++c)
      if (!decl_.components()[c].on_host()) model.components.emplace_back(c);
    worker_ = std::make_unique<Worker>(WorkerOptions{.id = WorkerId(0),
                                                     .device = device_.get(),
                                                     .host_pool = &host_,
                                                     .run_ahead = run_ahead,
                                                     .models = {model},
                                                     .profile = profile,
                                                     .clock = &clock_},
                                       mesh_);
    const Status loaded = worker_->load();
    EXPECT_TRUE(loaded) << loaded.error().message;
    settle();
  }

  wire::AddRequest add(std::uint64_t id, const std::string& fail = "") const {
    auto params = std::make_shared<decl::RequestParams>();
    if (!fail.empty()) params->fields.set("fail", fail);
    params->sampling.max_tokens = 4;
    params->sampling.ignore_eos = true;
    return {RequestId(id),
            0,
            params,
            graph::RequestPlacement(*compiled_, WorkerId(0)).table(),
            {{decl_.find_port("prompt"), {HostValue::blob("hello")}}}};
  }
  wire::PartitionMessage start(std::uint64_t id, const std::string& walk, std::int32_t pass = 1) const {
    graph::StartPass start{.walk = decl_.find_walk(walk), .pass = pass};
    if (walk == "hear") start.kept = {{decl_.find_port("prompt"), 0}};
    if (walk == "say") start.kept = {{decl_.find_port("token"), pass - 1}};
    return {RequestId(id), {decl_.partition_of(start.walk), start}};
  }
  void give(wire::ToWorker message) {
    worker_->send(std::move(message));
    while (worker_->poll()) {
    }
  }
  void settle() {
    do {
      host_.run_all();
      while (worker_->poll()) {
      }
    } while (!host_.jobs.empty());
  }
  std::size_t num_reports() const { return mesh_.all<wire::FragmentReport>().size(); }
  std::int64_t used() const {
    std::int64_t count = 0;
    for (const auto& pool : worker_->stats().pools) count += pool.used;
    return count;
  }

  decl::Decl decl_;
  std::unique_ptr<Device> device_;
  std::optional<graph::CompiledModel> compiled_;
  ManualClock clock_;
  RecordingMesh mesh_;
  ManualHost host_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace mstar::worker
