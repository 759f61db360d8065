// Workers that are taken out of service while requests run.
#include <gmock/gmock.h>

#include "mstar/conductor/conductor_fixture.h"

namespace mstar::conductor {
namespace {

using State = WorkerInfo::State;
using ::testing::HasSubstr;

class DrainTest : public ConductorTest {
 protected:
  // Ranks 0, 1, ... are the workers 1, 2, ...
  void make_ranks(std::vector<std::uint32_t> a, std::vector<std::uint32_t> b, ConductorOptions options = {}) {
    std::set<std::uint32_t> all(a.begin(), a.end());
    all.insert(b.begin(), b.end());
    for (const std::uint32_t worker : all) options.ranks.emplace_back(worker);
    make(std::move(a), std::move(b), std::move(options));
  }
  WorkerInfo order(int rank, WorkerOrder order) {
    auto info = conductor_->order_worker(rank, order);
    EXPECT_TRUE(info);
    conductor_->poll();
    return std::move(*info);
  }
  State state(int rank) const { return conductor_->workers()[static_cast<std::size_t>(rank)].state; }
  void finish(RequestId id, std::uint32_t a, std::uint32_t b) {
    report(id, a, 1);
    report(id, b, 2);
    for (const std::uint32_t worker : {a, b}) tell(wire::Removed{id, WorkerId(worker)});
  }
};

TEST_F(DrainTest, ADrainingReplicaGetsNothingNewAndItsRequestsEndWell) {
  make_ranks({1, 2}, {3});
  const auto [first_id, first] = submit();
  const auto [second_id, second] = submit();
  const std::uint32_t drained = chosen(first_id), other = 3 - drained;
  EXPECT_EQ(order(static_cast<int>(drained) - 1, WorkerOrder::drain).state, State::draining);
  EXPECT_EQ(conductor_->workers()[drained - 1].num_requests, 1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(chosen(submit().first), other);
  }
  EXPECT_TRUE(conductor_->state().ready);
  finish(first_id, drained, 3);
  EXPECT_EQ(first->events, (std::vector<std::string>{"finished"}));
  EXPECT_EQ(state(static_cast<int>(drained) - 1), State::drained);
  EXPECT_TRUE(mesh_.receivers<wire::Unload>().empty());
  EXPECT_EQ(order(static_cast<int>(drained) - 1, WorkerOrder::resume).state, State::running);
  EXPECT_EQ(chosen(submit().first), drained);  // it has none
}

TEST_F(DrainTest, RanksInStepTakeOrdersThroughTheirLeader) {
  ConductorOptions options;
  options.leaders = {0, 0, 2};  // workers 1 and 2 are one replica
  for (const std::uint32_t worker : {1, 2, 3}) options.ranks.emplace_back(worker);
  make({1}, {3}, std::move(options));
  EXPECT_THAT(conductor_->order_worker(1, WorkerOrder::drain).error().message, HasSubstr("follows rank 0"));
  const auto [id, sink] = submit();
  EXPECT_EQ(order(0, WorkerOrder::drain).state, State::draining);
  EXPECT_EQ(state(1), State::draining);  // with its leader
  EXPECT_EQ(conductor_->workers()[1].rank, 1);
  finish(id, 1, 3);
  EXPECT_EQ(state(1), State::drained);
  EXPECT_EQ(order(0, WorkerOrder::resume).state, State::running);
  EXPECT_EQ(state(1), State::running);
  order(0, WorkerOrder::remove);
  EXPECT_EQ(state(0), State::removed);
  EXPECT_EQ(state(1), State::removed);
  order(2, WorkerOrder::remove);  // alone
  EXPECT_EQ(state(2), State::removed);
}

TEST_F(DrainTest, AWantedReplicaThatDrainsIsNotChosen) {
  make_ranks({1, 2}, {3});
  order(1, WorkerOrder::drain);
  ApiRequest request{.model = "two", .text = "x"};
  request.replica = 1;
  const auto id = conductor_->submit(std::move(request), std::make_shared<RecordingSink>());
  ASSERT_TRUE(id);
  conductor_->poll();
  EXPECT_EQ(chosen(*id), 1u);
}

TEST_F(DrainTest, ARemovedOneLetsGoOnceItsLastRequestHasLeft) {
  make_ranks({1, 2}, {3});
  const auto [id, sink] = submit();
  const std::uint32_t worker = chosen(id);
  const int rank = static_cast<int>(worker) - 1;
  EXPECT_EQ(order(rank, WorkerOrder::remove).state, State::draining);
  report(id, worker, 1);
  report(id, 3, 2);
  EXPECT_TRUE(mesh_.receivers<wire::Unload>().empty());  // the worker still has it
  tell(wire::Removed{id, WorkerId(worker)});
  EXPECT_EQ(mesh_.receivers<wire::Unload>(), (std::vector<std::uint32_t>{worker}));
  EXPECT_EQ(state(rank), State::removed);
  tell(wire::Removed{id, WorkerId(3)});
  order(rank, WorkerOrder::remove);
  order(rank, WorkerOrder::drain);
  EXPECT_EQ(mesh_.receivers<wire::Unload>().size(), 1u);
  EXPECT_EQ(order(rank, WorkerOrder::resume).state, State::starting);
  EXPECT_EQ(mesh_.receivers<wire::Load>(), (std::vector<std::uint32_t>{worker}));
  const auto [other_id, other] = submit();
  EXPECT_EQ(chosen(other_id), 3 - worker);  // it is loading still
  tell(wire::WorkerReady{WorkerId(worker)});
  EXPECT_EQ(state(rank), State::running);
  EXPECT_EQ(chosen(submit().first), worker);
}

TEST_F(DrainTest, WithoutAReplicaNewRequestsAreRefusedWithTheWayOut) {
  make_ranks({1}, {2}, {.max_concurrent_requests = 1});
  const auto [id, sink] = submit();
  const auto [queued_id, queued] = submit();
  order(0, WorkerOrder::drain);
  const auto refused = conductor_->submit({.model = "two"}, std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("POST /debug/workers/0/resume"));
  EXPECT_FALSE(conductor_->state().ready);
  finish(id, 1, 2);
  EXPECT_EQ(sink->events, (std::vector<std::string>{"finished"}));
  ASSERT_TRUE(queued->error);  // when its turn came
  EXPECT_EQ(queued->error->code, Code::unavailable);
  order(0, WorkerOrder::resume);
  EXPECT_TRUE(conductor_->state().ready);
  const auto [later_id, later] = submit();
  finish(later_id, 1, 2);
  EXPECT_EQ(later->events, (std::vector<std::string>{"finished"}));
}

TEST_F(DrainTest, UnknownRanksAreRefused) {
  make_ranks({1}, {2});
  for (const int rank : {-1, 2}) {
    const auto refused = conductor_->order_worker(rank, WorkerOrder::drain);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::invalid_request);
    EXPECT_EQ(refused.error().field, "rank");
  }
  EXPECT_EQ(conductor_->workers()[0].parts[0].components, (std::vector<std::string>{"a"}));
  EXPECT_EQ(conductor_->workers()[1].parts[0].components, (std::vector<std::string>{"b"}));
}

TEST_F(DrainTest, OneThatDiesWhileItDrainsStaysOutOfServiceAndOneToBeRemovedIsRemovedAgain) {
  make_ranks({1, 2}, {3});
  const auto [id, sink] = submit();
  const std::uint32_t worker = chosen(id);
  const int rank = static_cast<int>(worker) - 1;
  order(rank, WorkerOrder::remove);
  mesh_.gone.insert(worker);
  tell(wire::WorkerFailed{WorkerId(worker), unavailable("signal 9")});
  EXPECT_TRUE(sink->error);
  EXPECT_EQ(state(rank), State::failed);
  EXPECT_THAT(conductor_->workers()[worker - 1].reason, HasSubstr("signal 9"));
  EXPECT_EQ(conductor_->workers()[worker - 1].num_requests, 0);
  mesh_.gone.clear();
  tell(wire::WorkerReady{WorkerId(worker)});
  EXPECT_EQ(state(rank), State::removed);
  EXPECT_EQ(mesh_.receivers<wire::Unload>(), (std::vector<std::uint32_t>{worker}));
}

// What workers and requests must be, kept from the messages alone, through random orders of events.
class DrainOrders : public DrainTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr std::uint32_t kWorkers = 5;
  struct Worker {
    bool drains = false, removes = false, loaded = true, loading = false, alive = true;
    std::set<RequestId> requests;
  };
  struct Live {
    std::shared_ptr<RecordingSink> sink;
    std::uint32_t a = 0, b = 0;
    int passes = 0;
  };
  std::map<std::uint32_t, Worker> workers_;
  std::map<RequestId, Live> live_;
  std::mt19937_64 random_;
  std::size_t num_read_ = 0;
  int num_added_ = 0, num_unloads_ = 0;

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void read_messages() {
    for (; num_read_ < mesh_.sent.size(); ++num_read_) {
      const auto& [number, message] = mesh_.sent[num_read_];
      Worker& worker = workers_[number];
      if (const auto* add = std::get_if<wire::AddRequest>(&message)) {
        ASSERT_FALSE(worker.drains) << "a request for worker " << number << ", which drains";
        ASSERT_TRUE(worker.loaded && worker.alive);
        worker.requests.insert(add->request);
        Live& live = live_[add->request];
        (number <= 3 ? live.a : live.b) = number;
        ++num_added_;
      } else if (std::holds_alternative<wire::Unload>(message)) {
        ASSERT_TRUE(worker.removes) << "nobody asked for it";
        ASSERT_TRUE(worker.requests.empty()) << "with requests";
        worker.loaded = worker.loading = false;
        ++num_unloads_;
      } else if (std::holds_alternative<wire::Load>(message)) {
        worker.loading = true;
      }
    }
  }
  void step() {
    const auto number = static_cast<std::uint32_t>(1 + below(kWorkers));
    Worker& worker = workers_[number];
    switch (below(20)) {
      case 0: {
        worker.drains = true;
        order(static_cast<int>(number) - 1, WorkerOrder::drain);
        break;
      }
      case 1: {
        worker.drains = worker.removes = true;
        order(static_cast<int>(number) - 1, WorkerOrder::remove);
        break;
      }
      case 2:
      case 3:
      case 4: {
        worker.drains = worker.removes = false;
        order(static_cast<int>(number) - 1, WorkerOrder::resume);
        break;
      }
      case 5:
      case 6:
        if (worker.loading && worker.alive) {
          worker.loading = false;
          worker.loaded = true;
          tell(wire::WorkerReady{WorkerId(number)});
        }
        break;
      case 7:
        if (worker.alive && below(3) == 0) {
          worker.alive = worker.loaded = worker.loading = false;
          worker.requests.clear();
          mesh_.gone.insert(number);
          tell(wire::WorkerFailed{WorkerId(number), unavailable("gone")});
        } else if (!worker.alive) {
          worker.alive = worker.loaded = true;
          mesh_.gone.erase(number);
          tell(wire::WorkerReady{WorkerId(number)});
        }
        break;
      case 8:
      case 9:
      case 10:
      case 11:
        submit_one();
        break;
      default:
        go_on();
    }
    read_messages();
  }
  void submit_one() {
    auto sink = std::make_shared<RecordingSink>();
    const auto id = conductor_->submit({.model = "two", .text = "x"}, sink);
    if (!id) {
      EXPECT_TRUE(id.error().code == Code::unavailable || id.error().code == Code::exhausted);
      return;
    }
    live_[*id].sink = sink;
    conductor_->poll();
  }
  // The next thing that a request does.
  void go_on() {
    if (live_.empty()) return;
    auto at = live_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(live_.size())));
    const RequestId id = at->first;
    Live& live = at->second;
    if (live.sink->events.empty() && live.passes < 2 && live.a != 0) {
      ++live.passes;
      report(id, live.passes == 1 ? live.a : live.b, live.passes);
    }
    if (live.sink->events.empty()) return;
    ASSERT_EQ(live.sink->events.size(), 1u);
    for (const std::uint32_t number : {live.a, live.b})
      if (number != 0 && workers_[number].requests.erase(id)) tell(wire::Removed{id, WorkerId(number)});
    live_.erase(id);
  }
  void check_states() {
    const auto infos = conductor_->workers();
    for (const auto& [number, worker] : workers_) {
      const WorkerInfo& info = infos[number - 1];
      EXPECT_EQ(info.num_requests, static_cast<int>(worker.requests.size())) << "worker " << number;
      if (!worker.alive || !worker.loaded) continue;
      const State expected = !worker.drains            ? State::running
                             : worker.requests.empty() ? State::drained
                                                       : State::draining;
      if (info.state != State::removed) {
        EXPECT_EQ(info.state, expected) << "worker " << number;
      }
    }
  }
};

TEST_P(DrainOrders, NoRequestReachesOneThatDrainsAndEachEndsOnce) {
  random_.seed(static_cast<std::uint64_t>(GetParam()));
  make_ranks({1, 2, 3}, {4, 5}, {.max_concurrent_requests = 6, .max_queued_requests = 3});
  for (std::uint32_t number = 1; number <= kWorkers; ++number) workers_[number];
  for (int i = 0; i < 1500 && !HasFatalFailure(); ++i) {
    step();
    check_states();
  }
  for (std::uint32_t number = 1; number <= kWorkers; ++number) {
    Worker& worker = workers_[number];
    worker.drains = worker.removes = false;
    order(static_cast<int>(number) - 1, WorkerOrder::resume);
    mesh_.gone.erase(number);
    worker.alive = worker.loaded = true;
    tell(wire::WorkerReady{WorkerId(number)});
  }
  read_messages();
  for (int i = 0; i < 4000 && !live_.empty() && !HasFatalFailure(); ++i) {
    go_on();
    read_messages();
  }
  EXPECT_TRUE(live_.empty());
  EXPECT_TRUE(conductor_->load().empty());
  EXPECT_TRUE(conductor_->drain(std::chrono::milliseconds(0)));
  EXPECT_GT(num_added_, 40);
  EXPECT_GT(num_unloads_, 2);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DrainOrders, ::testing::Range(0, 40));

}  // namespace
}  // namespace mstar::conductor
