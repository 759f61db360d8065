// One worker alone: the test plays the conductor and the host pool.
#include "mstar/worker/worker.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/worker/lone_worker_test.h"

namespace mstar::worker {
namespace {

class WorkerTest : public LoneWorker {
 protected:
  WorkerTest() : LoneWorker(make_cpu_device()) {}
};

TEST_F(WorkerTest, SaysOnceThatItIsReady) {
  settle();
  ASSERT_EQ(mesh_.all<wire::WorkerReady>().size(), 1u);
  EXPECT_EQ(mesh_.all<wire::WorkerReady>()[0].worker, WorkerId(0));
}

TEST_F(WorkerTest, AnUnloadedWorkerHoldsNothingAndLoadsAgain) {
  const auto hear = [&](std::uint64_t id) {
    const std::size_t before = num_reports();
    give(add(id));
    give(start(id, "hear"));
    settle();
    return num_reports() - before;
  };
  EXPECT_EQ(hear(1), 1u);
  give(wire::Unload{});  // a request is left: not yet
  EXPECT_FALSE(worker_->stats().pools.empty());
  EXPECT_EQ(hear(2), 1u);
  for (const std::uint64_t id : {1u, 2u}) give(wire::RemoveRequest{RequestId(id)});
  EXPECT_TRUE(worker_->stats().pools.empty());
  EXPECT_TRUE(worker_->stats().components.empty());
  EXPECT_EQ(hear(3), 0u);
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  EXPECT_EQ(mesh_.all<wire::WorkerReady>().size(), 1u);
  for (std::size_t i = 2; i < 4; ++i) {  // the second time it is loaded already
    give(wire::Load{});
    EXPECT_EQ(mesh_.all<wire::WorkerReady>().size(), i);
  }
  EXPECT_FALSE(worker_->stats().pools.empty());
  EXPECT_EQ(hear(4), 1u);
  give(wire::RemoveRequest{RequestId(4)});
  EXPECT_EQ(used(), 0);
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

TEST_F(WorkerTest, RunsABriefStageAtOnceForItsOnlyRequest) {
  give(add(1, "brief"));
  give(start(1, "hear"));
  EXPECT_TRUE(host_.jobs.empty());
  EXPECT_EQ(num_reports(), 1u);
  give(add(2, "brief"));
  give(start(2, "hear"));
  EXPECT_EQ(host_.jobs.size(), 1u);  // the other request's messages must not wait for it
  settle();
  EXPECT_EQ(num_reports(), 2u);
}

TEST_F(WorkerTest, AStageThatIsNotBriefWaitsForThePool) {
  give(add(1));
  give(start(1, "hear"));
  EXPECT_EQ(host_.jobs.size(), 1u);
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

TEST_F(WorkerTest, AStageThatRunsIsToldWhenItsRequestEnds) {
  give(add(1, "tokenise_for_ever"));
  give(start(1, "hear"));
  ASSERT_EQ(host_.jobs.size(), 1u);
  std::thread pool(std::move(host_.jobs.front()));
  host_.jobs.clear();
  give(wire::RemoveRequest{RequestId(1)});
  pool.join();
  settle();
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
}

TEST_F(WorkerTest, AStageThatRunsIsToldWhenTheWorkerGoes) {
  give(add(1, "tokenise_for_ever"));
  give(start(1, "hear"));
  ASSERT_EQ(host_.jobs.size(), 1u);
  std::thread pool(std::move(host_.jobs.front()));
  host_.jobs.clear();
  worker_.reset();
  pool.join();
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

TEST_F(WorkerTest, ClientsGetTheirValuesBeforeTheReportOfTheWalk) {
  for (const std::uint64_t id : {1, 2}) {
    give(add(id));
    give(start(id, "hear"));
  }
  settle();
  for (const std::uint64_t id : {1, 2}) {
    auto message = start(id, "write", 2);
    std::get<graph::StartPass>(message.signal.signal).kept = {{decl_.find_port("token"), 1}};
    worker_->send(std::move(message));
  }
  settle();
  std::map<std::uint64_t, std::size_t> num_values, num_reports;
  for (const auto& message : mesh_.sent) {
    if (const auto* given = std::get_if<wire::ClientValues>(&message)) {
      std::size_t num = 0;
      for (const auto& part : given->parts) {
        EXPECT_LT(num_reports[part.request.value], 2u);
        num_values[part.request.value] += part.num_values;
        num += part.num_values;
      }
      EXPECT_EQ(num, given->values.size());
      EXPECT_EQ(given->worker, WorkerId(0));
    } else if (const auto* report = std::get_if<wire::FragmentReport>(&message)) {
      ++num_reports[report->request.value];
    }
  }
  EXPECT_GT(num_values[1], 0u);
  EXPECT_EQ(num_values[1], num_values[2]);
  EXPECT_EQ(num_reports[1], 2u);
}

// Between threads a tensor is the buffer that the step wrote, not its bytes.
TEST_F(WorkerTest, TensorsGoToOtherWorkersAsTheBuffersThatTheyAre) {
  const auto decoder = decl_.find_component("decoder");
  WorkerModel model{.name = "lm",
                    .compiled = &*compiled_,
                    .components = {decoder},
                    .limits = {.max_requests = 2, .max_rows = 8, .max_tokens = 256}};
  Worker other({.id = WorkerId(1), .device = device_.get(), .models = {model}}, mesh_);
  ASSERT_TRUE(other.load());
  auto split = add(1);
  graph::RequestPlacement placement(*compiled_, WorkerId(0));
  placement.set(decoder, WorkerId(1));
  split.placement = placement.table();
  give(split);
  give(start(1, "hear"));
  settle();
  ASSERT_EQ(mesh_.to_workers.size(), 1u);
  EXPECT_EQ(mesh_.to_workers[0].first, WorkerId(1));
  const auto& signal = std::get<wire::PartitionMessage>(mesh_.to_workers[0].second).signal.signal;
  const Value value = std::get<graph::Delivery>(signal).values.at(0);
  ASSERT_TRUE(value.device);
  EXPECT_TRUE(value.host.is_signal());
  give(wire::RemoveRequest{RequestId(1)});  // so that numbers are published at once
  EXPECT_EQ(worker_->stats().num_handed_over, 1u);
  EXPECT_EQ(worker_->stats().handed_over_bytes, value.device->size_bytes());
  other.send(split);
  other.send(start(1, "hear"));
  other.send(std::move(mesh_.to_workers[0].second));
  while (other.poll()) {
  }
  bool reported = false;
  for (const auto& report : mesh_.all<wire::FragmentReport>()) reported |= report.worker == WorkerId(1);
  EXPECT_TRUE(reported);
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
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
