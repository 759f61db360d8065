// Workers that come back are warmed before clients' requests reach them.
#include <gmock/gmock.h>

#include "mstar/conductor/conductor_fixture.h"

namespace mstar::conductor {
namespace {

using State = WorkerInfo::State;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kSecond = 1000000;

class WarmupTest : public ConductorTest {
 protected:
  // Ranks 0, 1, ... are the workers 1, 2, ...
  void make_ranks(std::vector<std::uint32_t> a, std::vector<std::uint32_t> b, ConductorOptions options = {}) {
    std::set<std::uint32_t> all(a.begin(), a.end());
    all.insert(b.begin(), b.end());
    for (const std::uint32_t worker : all) options.ranks.emplace_back(worker);
    options.clock = &clock_;
    make(std::move(a), std::move(b), std::move(options));
  }
  void set_warmup(std::vector<std::uint32_t> copies) {
    std::vector<WarmupCall> calls;
    for (const std::uint32_t each : copies)
      calls.push_back({"warmup-" + std::to_string(calls.size()), {.model = "two", .text = "warm"}, each});
    ASSERT_TRUE(conductor_->set_warmup(calls).ok());
    turn();
  }
  // All turns that there are.
  void turn() {
    while (conductor_->poll()) {
    }
  }
  void die(std::uint32_t worker, const std::string& why = "killed by signal 9") {
    conductor_->receive(wire::WorkerFailed{WorkerId(worker), unavailable(why)});
    turn();
  }
  void come(std::uint32_t worker) {
    conductor_->receive(wire::WorkerReady{WorkerId(worker)});
    turn();
  }
  WorkerInfo info(std::uint32_t worker) const { return conductor_->workers()[worker - 1]; }
  // Requests that reached a worker of group a, in their order, after the first `from` messages.
  std::vector<std::pair<RequestId, std::uint32_t>> adds(std::size_t from) const {
    std::vector<std::pair<RequestId, std::uint32_t>> out;
    for (std::size_t i = from; i < mesh_.sent.size(); ++i)
      if (const auto* add = std::get_if<wire::AddRequest>(&mesh_.sent[i].second);
          add && add->placement[0].value == mesh_.sent[i].first)
        out.emplace_back(add->request, add->placement[0].value);
    return out;
  }
  std::vector<RequestId> added_to(std::uint32_t worker, std::size_t from) const {
    std::vector<RequestId> out;
    for (const auto& [id, at] : adds(from))
      if (at == worker) out.push_back(id);
    return out;
  }
  void finish(RequestId id, std::uint32_t a, std::uint32_t b) {
    report(id, a, 1);
    report(id, b, 2);
    for (const std::uint32_t worker : {a, b}) tell(wire::Removed{id, WorkerId(worker)});
    turn();
  }
  void fail(RequestId id, std::uint32_t a, std::uint32_t b, const std::string& why) {
    tell(wire::RequestFailed{id, internal_error(why)});
    for (const std::uint32_t worker : {a, b}) tell(wire::Removed{id, WorkerId(worker)});
    turn();
  }

  ManualClock clock_;
};

TEST_F(WarmupTest, AWorkerThatComesBackAnswersItsWarmUpFirstWhileTheOtherServes) {
  make_ranks({1, 2}, {3});
  set_warmup({2, 2});
  die(1);
  const std::size_t from = mesh_.sent.size();
  come(1);
  EXPECT_EQ(info(1).state, State::warming);
  const auto first = added_to(1, from);
  ASSERT_EQ(first.size(), 1u);  // copy 0; that of replica 1 is warm
  for (int i = 0; i < 5; ++i) EXPECT_EQ(chosen(submit().first), 2u);
  finish(first[0], 1, 3);
  const auto second = added_to(1, from);  // the next request of the list
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(chosen(submit().first), 2u);
  EXPECT_EQ(info(1).state, State::warming);
  finish(second[1], 1, 3);
  EXPECT_EQ(info(1).state, State::running);
  EXPECT_EQ(chosen(submit().first), 1u);
  EXPECT_EQ(added_to(1, from).size(), 3u);
}

TEST_F(WarmupTest, CopiesOfARequestRunAtOnceAsTheyDidAtTheStart) {
  make_ranks({1, 2}, {3});
  set_warmup({5});  // copies 0, 2 and 4 were on the first
  die(1);
  const std::size_t from = mesh_.sent.size();
  come(1);
  const auto copies = added_to(1, from);
  ASSERT_EQ(copies.size(), 3u);
  finish(copies[0], 1, 3);
  finish(copies[2], 1, 3);
  EXPECT_EQ(info(1).state, State::warming);
  finish(copies[1], 1, 3);
  EXPECT_EQ(info(1).state, State::running);
}

TEST_F(WarmupTest, WithoutAnotherReplicaRequestsAreRefusedWhileItGetsWarm) {
  make_ranks({1}, {2});
  set_warmup({1});
  die(1);
  const std::size_t from = mesh_.sent.size();
  come(1);
  const auto refused = conductor_->submit({.model = "two"}, std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("worker 1 is warming up"));
  EXPECT_FALSE(conductor_->state().ready);
  finish(added_to(1, from).at(0), 1, 2);
  EXPECT_TRUE(conductor_->state().ready);
  EXPECT_EQ(chosen(submit().first), 1u);
}

TEST_F(WarmupTest, AFailedWarmUpIsTriedAgainLaterAndLater) {
  make_ranks({1, 2}, {3});
  set_warmup({2});
  die(1);
  come(1);
  for (int tried = 1; tried < 5; ++tried) {
    const auto running = adds(0);
    fail(running.back().first, 1, 3, "no memory");
    EXPECT_EQ(info(1).state, State::warming);
    EXPECT_EQ(info(1).reason, "its warm-up failed (" + std::to_string(tried) + " of 5 times): warmup-0.0: no memory");
    clock_.advance_us((kSecond << (tried - 1)) - 1);
    turn();
    EXPECT_EQ(adds(0).size(), running.size());
    clock_.advance_us(1);
    turn();
    ASSERT_EQ(adds(0).size(), running.size() + 1);
  }
  finish(adds(0).back().first, 1, 3);
  EXPECT_EQ(info(1).state, State::running);
  EXPECT_EQ(info(1).reason, "");
}

TEST_F(WarmupTest, OneThatFailsTooOftenStaysOutWithItsReasonUntilItIsResumed) {
  make_ranks({1}, {2}, {.most_warmup_tries = 2});
  set_warmup({1});
  die(1);
  come(1);
  fail(adds(0).back().first, 1, 2, "no memory");
  clock_.advance_us(kSecond);
  turn();
  fail(adds(0).back().first, 1, 2, "no luck");
  EXPECT_EQ(info(1).state, State::failed);
  EXPECT_THAT(info(1).reason, HasSubstr("its warm-up failed 2 times, at last with: warmup-0.0: no luck"));
  EXPECT_THAT(conductor_->state().reason, HasSubstr("no luck; POST /debug/workers/0/resume tries it again"));
  const std::size_t count = adds(0).size();
  clock_.advance_us(3600 * kSecond);
  turn();
  die(1);
  come(1);  // another life changes nothing
  EXPECT_EQ(info(1).state, State::failed);
  EXPECT_EQ(adds(0).size(), count);
  ASSERT_TRUE(conductor_->order_worker(0, WorkerOrder::resume));
  turn();
  ASSERT_EQ(adds(0).size(), count + 1);
  finish(adds(0).back().first, 1, 2);
  EXPECT_EQ(info(1).state, State::running);
}

TEST_F(WarmupTest, DeathsInTheWarmUpCountAsItsFailures) {
  make_ranks({1, 2}, {3}, {.most_warmup_tries = 3});
  set_warmup({2});
  for (int life = 0; life < 4; ++life) {
    die(1);
    clock_.advance_us(60 * kSecond);
    come(1);
  }
  EXPECT_EQ(info(1).state, State::failed);
  EXPECT_THAT(info(1).reason, HasSubstr("killed by signal 9"));
  EXPECT_EQ(adds(0).size(), 3u);
}

TEST_F(WarmupTest, TwoThatComeBackTogetherWarmEachOtherUpAndAnothersDeathIsNoFailure) {
  make_ranks({1}, {2});
  set_warmup({1});
  die(1);
  die(2);
  come(1);
  EXPECT_EQ(adds(0).size(), 0u);
  EXPECT_THAT(info(1).reason, HasSubstr("waits for a worker that runs 'b'"));
  come(2);
  auto running = adds(0);
  ASSERT_EQ(running.size(), 2u);  // one for each of them
  die(2);
  for (const auto& each : running) tell(wire::Removed{each.first, WorkerId(1)});
  turn();
  EXPECT_EQ(info(1).state, State::warming);
  EXPECT_THAT(info(1).reason, HasSubstr("cut off"));
  clock_.advance_us(2 * kSecond);
  come(2);
  running = adds(0);
  ASSERT_EQ(running.size(), 4u);
  for (std::size_t i = 2; i < 4; ++i) finish(running[i].first, 1, 2);
  EXPECT_EQ(info(1).state, State::running);
  EXPECT_EQ(info(2).state, State::running);
  EXPECT_TRUE(conductor_->state().ready);
}

TEST_F(WarmupTest, ARemovedOneIsWarmedWhenItIsResumedAndADrainedOneIsWarm) {
  make_ranks({1, 2}, {3});
  set_warmup({2});
  ASSERT_TRUE(conductor_->order_worker(0, WorkerOrder::drain));
  turn();
  ASSERT_TRUE(conductor_->order_worker(0, WorkerOrder::resume));
  come(1);
  EXPECT_EQ(info(1).state, State::running);
  EXPECT_TRUE(adds(0).empty());
  ASSERT_TRUE(conductor_->order_worker(0, WorkerOrder::remove));
  turn();
  EXPECT_EQ(info(1).state, State::removed);
  ASSERT_TRUE(conductor_->order_worker(0, WorkerOrder::resume));
  turn();
  EXPECT_TRUE(adds(0).empty());
  come(1);
  EXPECT_EQ(info(1).state, State::warming);
  finish(adds(0).at(0).first, 1, 3);
  EXPECT_EQ(info(1).state, State::running);
}

TEST_F(WarmupTest, AWorkerThatCameBackBeforeTheListWasKnownIsWarmedThen) {
  make_ranks({1, 2}, {3});
  die(1);
  come(1);
  EXPECT_EQ(info(1).state, State::running);
  set_warmup({2});
  EXPECT_EQ(info(1).state, State::warming);
  EXPECT_EQ(info(2).state, State::running);
  finish(adds(0).at(0).first, 1, 3);
  EXPECT_EQ(info(1).state, State::running);
}

TEST_F(WarmupTest, ACopyOverTheCapWaitsForItsTurn) {
  make_ranks({1, 2}, {3}, {.max_concurrent_requests = 1});
  set_warmup({2});
  const auto [id, sink] = submit();
  const std::uint32_t serves = chosen(id), back = 3 - serves;
  die(back);
  come(back);
  EXPECT_TRUE(added_to(back, 0).empty());
  finish(id, serves, 3);
  ASSERT_EQ(added_to(back, 0).size(), 1u);
  finish(added_to(back, 0)[0], back, 3);
  EXPECT_EQ(info(back).state, State::running);
}

}  // namespace
}  // namespace mstar::conductor
