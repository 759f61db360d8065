// One worker alone: the test plays the conductor and the host pool.
#include "mstar/worker/worker.h"

#include <gtest/gtest.h>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/worker/toy_support_test.h"

namespace mstar::worker {
namespace {

struct RecordingMesh final : wire::Mesh {
  std::vector<wire::ToConductor> sent;
  bool to_worker(WorkerId, wire::ToWorker) override { return true; }
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
class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() : decl_(toy::language_model("lm")), device_(make_cpu_device()) {
    auto compiled = graph::CompiledModel::compile(decl_);
    EXPECT_TRUE(compiled);
    compiled_.emplace(std::move(*compiled));
    WorkerModel model{
        .name = "lm", .compiled = &*compiled_, .limits = {.max_requests = 2, .max_rows = 8, .max_tokens = 256}};
    for (std::uint16_t c = 0; c < decl_.components().size(); ++c)
      if (!decl_.components()[c].on_host()) model.components.emplace_back(c);
    worker_ = std::make_unique<Worker>(
        WorkerOptions{.id = WorkerId(0), .device = device_.get(), .host_pool = &host_, .models = {model}}, mesh_);
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
  RecordingMesh mesh_;
  ManualHost host_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, SaysOnceThatItIsReady) {
  settle();
  ASSERT_EQ(mesh_.all<wire::WorkerReady>().size(), 1u);
  EXPECT_EQ(mesh_.all<wire::WorkerReady>()[0].worker, WorkerId(0));
}

TEST_F(WorkerTest, SignalsBeforeTheRequestAreHeldAndReplayed) {
  give(start(1, "hear"));
  settle();
  EXPECT_EQ(worker_->stats().num_early_signals, 1u);
  EXPECT_TRUE(host_.jobs.empty());
  give(add(1));
  settle();
  EXPECT_EQ(num_reports(), 1u);
  EXPECT_EQ(worker_->stats().num_early_signals, 0u);
}

TEST_F(WorkerTest, AReplayThatEndsInARemovalMakesNoState) {
  give(start(1, "hear"));
  give(wire::RemoveRequest{RequestId(1)});
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);
  give(add(1));
  settle();
  EXPECT_EQ(worker_->stats().num_requests, 0);
  EXPECT_EQ(num_reports(), 0u);
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, LateSignalsOfARemovedRequestAreNotHeld) {
  give(add(1));
  give(wire::RemoveRequest{RequestId(1)});
  for (int i = 0; i < 5000; ++i) give(start(1, "hear"));
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
  give(add(2));
  give(start(2, "hear"));
  settle();
  EXPECT_EQ(num_reports(), 1u);
  EXPECT_EQ(worker_->stats().num_early_signals, 0u);
}

TEST_F(WorkerTest, SignalsOfARequestThatNeverComesGoWithTheNextOne) {
  give(start(1, "hear"));  // a peer's, of a request that died before it got here
  give(add(2));
  settle();
  EXPECT_EQ(worker_->stats().num_early_signals, 0u);
}

TEST_F(WorkerTest, TooManyEarlySignalsFailTheirRequest) {
  for (int i = 0; i < 4097; ++i) worker_->send(start(7, "hear"));
  while (worker_->poll()) {
  }
  ASSERT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  EXPECT_EQ(mesh_.all<wire::RequestFailed>()[0].request, RequestId(7));
}

TEST_F(WorkerTest, ARemovalIsAnsweredAlsoForUnknownAndRepeatedRequests) {
  give(add(1));
  give(wire::RemoveRequest{RequestId(1)});
  give(wire::RemoveRequest{RequestId(1)});
  give(wire::RemoveRequest{RequestId(5)});
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 3u);
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, MessagesThatFitNothingFailOrAreDropped) {
  auto wrong_model = add(1);
  wrong_model.model = 9;
  give(wrong_model);
  auto short_table = add(2);
  short_table.placement.pop_back();
  give(short_table);
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 2u);
  give(add(3));
  give(wire::PartitionMessage{RequestId(3), {decl::PartitionRef(77), graph::StartPass{}}});
  give(wire::CancelPartition{RequestId(3), decl::PartitionRef(77)});
  give(wire::PartitionMessage{RequestId(3), {decl::PartitionRef(0), graph::Delivery{.pass = 1, .edge = 999}}});
  give(wire::PartitionMessage{RequestId(3), {decl::PartitionRef(0), graph::LoopStop{.pass = 1, .loop = 99}}});
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 2u);
  give(wire::PartitionMessage{RequestId(3),
                              {decl::PartitionRef(0), graph::StartPass{.walk = decl::WalkRef(55), .pass = 1}}});
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 3u);
  for (std::uint64_t id = 1; id <= 3; ++id) give(wire::RemoveRequest{RequestId(id)});
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 3u);
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, ARepeatedRequestIsIgnored) {
  give(add(1));
  give(start(1, "hear"));
  give(add(1));
  settle();
  EXPECT_EQ(num_reports(), 1u);
  give(wire::RemoveRequest{RequestId(1)});
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, MoreRequestsThanThePoolsHoldFailAndTakeNothing) {
  for (std::uint64_t id = 1; id <= 3; ++id) give(add(id));
  ASSERT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  EXPECT_EQ(mesh_.all<wire::RequestFailed>()[0].error.code, Code::exhausted);
  for (std::uint64_t id = 1; id <= 3; ++id) give(wire::RemoveRequest{RequestId(id)});
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, AFailureIsReportedOnceAndItsWorkIsDropped) {
  give(add(1, "tokenise"));
  give(start(1, "hear"));
  settle();
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  give(start(1, "hear"));
  give(start(1, "write"));
  settle();
  EXPECT_TRUE(host_.jobs.empty());
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  give(wire::RemoveRequest{RequestId(1)});
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);
}

TEST_F(WorkerTest, ARowThatFailsInPreparationLeavesTheOthersOrAnEmptyBatch) {
  give(add(1, "declare"));
  give(start(1, "hear"));
  settle();  // alone in its batch
  ASSERT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  EXPECT_EQ(num_reports(), 0u);
  give(wire::RemoveRequest{RequestId(1)});
  give(add(2));
  give(add(3, "declare"));
  for (const std::uint64_t id : {2u, 3u}) worker_->send(start(id, "hear"));
  settle();  // with another in it
  ASSERT_EQ(mesh_.all<wire::RequestFailed>().size(), 2u);
  EXPECT_EQ(mesh_.all<wire::RequestFailed>()[1].request, RequestId(3));
  ASSERT_EQ(num_reports(), 1u);
  EXPECT_EQ(mesh_.all<wire::FragmentReport>()[0].request, RequestId(2));
  for (const std::uint64_t id : {2u, 3u}) give(wire::RemoveRequest{RequestId(id)});
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, AFailureAfterTheRemovalIsNotReported) {
  give(add(1, "tokenise"));
  give(start(1, "hear"));
  give(wire::RemoveRequest{RequestId(1)});
  settle();
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);
}

TEST_F(WorkerTest, RemovalWaitsForTheHostStage) {
  give(add(1));
  give(start(1, "hear"));
  ASSERT_EQ(host_.jobs.size(), 1u);
  give(wire::RemoveRequest{RequestId(1)});
  EXPECT_TRUE(mesh_.all<wire::Removed>().empty());
  settle();
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, RemovalCutsASlicedStepShort) {
  give(add(1));
  worker_->send(start(1, "hear"));
  worker_->poll();
  host_.run_all();
  worker_->poll();  // the encoder's first slice
  worker_->send(wire::RemoveRequest{RequestId(1)});
  worker_->poll();
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);  // the next turn ended the step, without its other slices
  settle();
  EXPECT_EQ(num_reports(), 0u);
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, ACancelledPartitionsStageIsVoidAndNeverRunsTwiceAtOnce) {
  give(add(1));
  give(start(1, "hear"));
  ASSERT_EQ(host_.jobs.size(), 1u);
  give(wire::CancelPartition{RequestId(1), decl::PartitionRef(0)});
  ASSERT_EQ(num_reports(), 1u);
  EXPECT_TRUE(mesh_.all<wire::FragmentReport>()[0].done.cancelled);
  give(start(1, "hear", 2));
  EXPECT_EQ(host_.jobs.size(), 1u);  // the stage is busy with the cancelled pass: the new one waits
  settle();
  EXPECT_EQ(num_reports(), 2u);
  EXPECT_FALSE(mesh_.all<wire::FragmentReport>()[1].done.cancelled);
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
  give(wire::RemoveRequest{RequestId(1)});
  EXPECT_EQ(used(), 0);
}

TEST_F(WorkerTest, AStageThatFailsAfterItsPartitionWasCancelledFailsNothing) {
  give(add(1, "tokenise"));
  give(start(1, "hear"));
  give(wire::CancelPartition{RequestId(1), decl::PartitionRef(0)});
  settle();
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
}

TEST_F(WorkerTest, StagesMayOutliveTheWorker) {
  give(add(1));
  give(start(1, "hear"));
  ASSERT_EQ(host_.jobs.size(), 1u);
  worker_.reset();
  host_.run_all();
}

TEST_F(WorkerTest, PoolsAreWholeAfterManyRequests) {
  for (std::uint64_t id = 1; id <= 200; ++id) {
    give(add(id));
    give(start(id, "hear"));
    if (id % 3) settle();
    if (id % 2) give(start(id, "say", 2));
    give(wire::RemoveRequest{RequestId(id)});
    settle();
    ASSERT_EQ(used(), 0) << id;
  }
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 200u);
  EXPECT_EQ(worker_->stats().num_requests, 0);
}

TEST_F(WorkerTest, AHostComponentNeedsAHostPool) {
  WorkerModel model{.name = "lm", .compiled = &*compiled_, .limits = {.max_requests = 2}};
  RecordingMesh mesh;
  Worker bare({.id = WorkerId(0), .models = {model}}, mesh);
  ASSERT_TRUE(bare.load());
  bare.send(add(1));
  bare.send(start(1, "hear"));
  while (bare.poll()) {
  }
  ASSERT_EQ(mesh.all<wire::RequestFailed>().size(), 1u);
  EXPECT_NE(mesh.all<wire::RequestFailed>()[0].error.message.find("tokenise"), std::string::npos);
}

}  // namespace
}  // namespace mstar::worker
