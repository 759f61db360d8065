// One worker on a device that defers its work: what is launched when, and what becomes of rows that were not to be.
#include <gtest/gtest.h>

#include <algorithm>

#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/worker/lone_worker_test.h"

namespace mstar::worker {
namespace {

class AheadTest : public LoneWorker {
 protected:
  explicit AheadTest(bool run_ahead = true, bool walks_apart = false)
      : LoneWorker(std::make_unique<engine::DeferredDevice>(), run_ahead, walks_apart) {}

  engine::DeferredDevice& device() { return static_cast<engine::DeferredDevice&>(*device_); }
  // Counters, once the request is gone: statistics of living ones may lag.
  wire::WorkerStats::Component decoder() {
    give(wire::RemoveRequest{RequestId(1)});
    EXPECT_EQ(used(), 0);
    for (const auto& each : worker_->stats().components)
      if (each.name == "decoder") return each;
    return {};
  }
  // Through the walk `hear`, so that the decode loop may start.
  void hear(std::uint64_t id, const std::string& fail = "") {
    give(add(id, fail));
    give(start(id, "hear"));
    settle();
  }
  wire::PartitionMessage say(std::uint64_t id, int cap, std::int32_t pass = 2, std::int64_t first_token = 1) const {
    auto message = start(id, "say", pass);
    auto& begin = std::get<graph::StartPass>(message.signal.signal);
    begin.caps = {{graph::LoopIndex{0}, cap}};
    begin.kept = {{decl_.find_port("token"), 1}};
    begin.stream_base = {{decl_.find_port("token"), first_token}};
    return message;
  }
  // Tokens that the decoder has given to the text partition so far.
  std::int64_t num_tokens() const {
    std::int64_t count = 0;
    for (const auto& report : mesh_.all<wire::FragmentReport>())
      for (const auto& [port, produced] : report.done.produced) count += produced;
    return count;
  }
  // Request 1 answers while request 2's prompt comes. The decoder's counters.
  wire::WorkerStats::Component answer_while_another_asks() {
    hear(1);
    give(add(2));
    worker_->send(say(1, 24));
    worker_->send(start(2, "hear"));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(worker_->poll());
    settle();
    EXPECT_EQ(num_reports(), 3u);
    EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
    give(wire::RemoveRequest{RequestId(2)});
    return decoder();
  }
  // What the client reads of them. The decoder makes a token -1, and then all later ones too, unless its state, keys
  // and draws are those of the rows that were committed.
  std::string text() {
    const std::int64_t count = num_tokens();
    for (std::int32_t pass = 1; pass <= count; ++pass) {
      give(start(1, "write", pass));
      settle();
    }
    std::string out;
    for (const auto& given : mesh_.all<wire::ClientValues>())
      for (const HostValue& each : given.values) out += each.text();
    EXPECT_EQ(std::count(out.begin(), out.end(), '<'), count);
    return out;
  }
};

struct WithoutAhead : AheadTest {
  WithoutAhead() : AheadTest(false) {}
};
struct WalksApart : AheadTest {
  WalksApart() : AheadTest(true, true) {}
};

TEST_F(AheadTest, TheNextStepIsLaunchedBeforeTheOneBeforeItIsRead) {
  hear(1);
  const std::size_t idle = device().num_waiting();
  EXPECT_EQ(idle, 0u);
  worker_->send(say(1, 4));
  ASSERT_TRUE(worker_->poll());  // launches the first token's step
  const std::size_t one = device().num_waiting();
  EXPECT_GT(one, 0u);
  ASSERT_TRUE(worker_->poll());
  EXPECT_GT(device().num_waiting(), one) << "a second step while nobody has read the first";
  const std::size_t two = device().num_waiting();
  ASSERT_TRUE(worker_->poll());
  EXPECT_LT(device().num_waiting(), two) << "then the first is read";
  EXPECT_GT(device().num_waiting(), 0u) << "and only the first";
  settle();
  EXPECT_EQ(num_reports(), 2u);
  const auto counted = decoder();
  EXPECT_EQ(counted.num_rows, 1 + 4);
  EXPECT_EQ(counted.num_ahead_rows, 1 + 3) << "the prompt's row, behind the encoder, and all but the first of the loop";
  EXPECT_EQ(counted.num_dropped_rows, 0) << "never past the cap";
  EXPECT_EQ(device().num_waiting(), 0u);
}

TEST_F(WithoutAhead, EachStepIsReadAtOnce) {
  hear(1);
  worker_->send(say(1, 4));
  while (worker_->poll()) EXPECT_EQ(device().num_waiting(), 0u);
  settle();
  const auto counted = decoder();
  EXPECT_EQ(counted.num_rows, 1 + 4);
  EXPECT_EQ(counted.num_ahead_rows, 0);
}

TEST_F(AheadTest, APromptRidesOnAStepOfAnswers) {
  const auto counted = answer_while_another_asks();
  EXPECT_EQ(counted.num_rows, 1 + 24 + 1);
  EXPECT_EQ(counted.num_steps, 1 + 24);
}

TEST_F(WalksApart, APromptHasAStepOfItsOwnBetweenThoseOfAnswers) {
  const auto counted = answer_while_another_asks();
  EXPECT_EQ(counted.num_rows, 1 + 24 + 1);
  EXPECT_EQ(counted.num_steps, 1 + 24 + 1);
}

TEST_F(AheadTest, ACancelledLoopLeavesNoTraceOfTheRowAhead) {
  hear(1);
  worker_->send(say(1, 40));
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(worker_->poll());  // two tokens are read, two steps in flight
  give(wire::CancelPartition{RequestId(1), decl_.partition_of(decl_.find_walk("say"))});
  settle();
  ASSERT_EQ(num_reports(), 2u);
  EXPECT_TRUE(mesh_.all<wire::FragmentReport>().back().done.cancelled);
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
  EXPECT_EQ(num_tokens(), 1 + 2);
  give(say(1, 3, 3, num_tokens()));
  settle();
  EXPECT_EQ(num_reports(), 3u);
  EXPECT_EQ(num_tokens(), 1 + 2 + 3);
  EXPECT_EQ(text().find("-1"), std::string::npos);
  EXPECT_EQ(decoder().num_dropped_rows, 1);
}

TEST_F(AheadTest, ANewPassWaitsUntilTheUnwantedRowIsRolledBack) {
  hear(1);
  worker_->send(say(1, 40));
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(worker_->poll());  // two tokens are read, two steps in flight
  // Both at once: the new pass is there while the old one's row ahead is still in flight.
  worker_->send(wire::CancelPartition{RequestId(1), decl_.partition_of(decl_.find_walk("say"))});
  give(say(1, 5, 3, 1 + 2));
  settle();
  EXPECT_EQ(num_reports(), 3u);
  EXPECT_EQ(num_tokens(), 1 + 2 + 5);
  EXPECT_EQ(text().find("-1"), std::string::npos);
  EXPECT_EQ(decoder().num_dropped_rows, 1);
}

TEST_F(AheadTest, RemovalWaitsForBothSteps) {
  hear(1);
  worker_->send(say(1, 40));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(worker_->poll());
  worker_->send(wire::RemoveRequest{RequestId(1)});
  worker_->poll();
  EXPECT_TRUE(mesh_.all<wire::Removed>().empty());
  settle();
  EXPECT_EQ(mesh_.all<wire::Removed>().size(), 1u);
  EXPECT_EQ(used(), 0);
}

TEST_F(AheadTest, AFailedRowTakesTheRowAheadAlong) {
  auto message = add(1, "fail_row");
  auto params = std::make_shared<decl::RequestParams>(*message.params);
  params->fields.set("fail_at", std::int64_t{3});
  message.params = params;
  give(message);
  give(start(1, "hear"));
  settle();
  give(say(1, 40));
  settle();
  EXPECT_EQ(mesh_.all<wire::RequestFailed>().size(), 1u);
  give(wire::RemoveRequest{RequestId(1)});
  EXPECT_EQ(used(), 0);
}

TEST_F(AheadTest, BehindALongPromptTheNextStepWaitsForWhatArrives) {
  const auto hear_slowly = [&](std::uint64_t id) {
    give(add(id));
    worker_->send(start(id, "hear"));
    do {
      host_.run_all();
      while (worker_->poll()) clock_.advance_us(6000);
    } while (!host_.jobs.empty());
    give(wire::RemoveRequest{RequestId(id)});
  };
  hear_slowly(1);
  hear_slowly(2);
  give(add(3));
  give(add(4));
  give(start(3, "hear"));
  give(start(4, "hear"));
  host_.jobs.front()();  // of request 3
  std::size_t most = 0;
  do {
    most = std::max(most, device().num_waiting());
    ASSERT_TRUE(worker_->poll());
  } while (device().num_waiting() >= most);
  // The encoder's step is read, the prompt's runs, for 6 ms by what came before. Now request 4 has something to run.
  const std::size_t prompt = device().num_waiting();
  ASSERT_GT(prompt, 0u);
  host_.jobs.back()();
  host_.jobs.clear();
  for (const int us : {0, 3000, 2600}) {
    clock_.advance_us(us);
    while (worker_->poll()) {
    }
    EXPECT_EQ(device().num_waiting(), prompt) << "nothing is launched behind it, nor is it read";
  }
  clock_.advance_us(200);
  EXPECT_TRUE(worker_->poll());
  EXPECT_GT(device().num_waiting(), prompt) << "before it ends";
  settle();
  EXPECT_EQ(num_reports(), 4u);
  EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
}

TEST_F(AheadTest, AWorkerMayEndWithStepsInFlight) {
  hear(1);
  worker_->send(say(1, 40));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(worker_->poll());
  EXPECT_GT(device().num_waiting(), 0u);
  worker_.reset();
}

}  // namespace
}  // namespace mstar::worker
