// Ranks that work in step, over the toy language model: whatever each of them is late with, all do the same; where one
// of them cannot, the group ends with a reason. The test plays conductor and host pool, and all ranks on one thread.
#include "mstar/worker/step_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/worker/lone_worker_test.h"
#include "mstar/worker/step_follower.h"
#include "mstar/worker/step_log_codec.h"

namespace mstar::worker {
namespace {

using ::testing::HasSubstr;

// Of a group that computes together; only its end is of interest.
struct FakeCommunicator final : Communicator {
  FakeCommunicator(int rank, std::set<int>& aborted) : rank_(rank), aborted_(aborted) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  Status all_reduce(void*, std::size_t, DType, Stream) override { return ok_status(); }
  Status all_gather(const void*, void*, std::size_t, Stream) override { return ok_status(); }
  Status all_to_all(const void*, void*, std::size_t, Stream) override { return ok_status(); }
  Status broadcast(void*, std::size_t, int, Stream) override { return ok_status(); }
  void abort(std::string) override { aborted_.insert(rank_); }
  Status failure() const override { return ok_status(); }
  int rank_;
  std::set<int>& aborted_;
};

struct Setup {
  int num_followers = 1;
  bool asynchronous = false;
  std::uint32_t salt = 7;  // of the followers' model; 7 is the leader's
  bool computes_together = false;
  std::uint64_t entries_per_state = 1;
  bool coded = false;  // what ranks say to each other goes as bytes, as between processes
};

// Of ranks that share a group, but say everything as bytes. Each rank has a model of its own.
class CodedTransport final : public StepTransport {
 public:
  CodedTransport(StepGroup& group, const std::vector<std::unique_ptr<graph::CompiledModel>>& models) : group_(group) {
    for (const auto& each : models) {
      models_.push_back({each.get()});
      readers_.emplace_back(models_.back());
    }
  }
  void log(const LogEntry& entry) override {
    for (std::size_t rank = 1; rank < models_.size(); ++rank)
      if (auto read = travel(entry, 0, rank))
        group_.receive(static_cast<int>(rank), std::move(std::get<LogEntry>(*read)));
  }
  void acknowledge(const Ack& ack) override {
    if (auto read = travel(ack, static_cast<std::size_t>(ack.rank), 0)) group_.receive(std::move(std::get<Ack>(*read)));
  }
  void end(const std::string&) override {}

 private:
  Result<StepMessage> travel(const StepMessage& message, std::size_t from, std::size_t to) {
    auto bytes = encode(message, models_[from]);
    EXPECT_TRUE(bytes) << bytes.error().message;
    if (!bytes) return std::move(bytes.error());
    auto read = readers_[to].decode(std::as_bytes(std::span(*bytes)));
    EXPECT_TRUE(read) << read.error().message;
    if (!read) return read;
    const auto again = encode(*read, models_[to]);
    EXPECT_TRUE(again && *again == *bytes);
    return read;
  }
  StepGroup& group_;
  std::vector<std::vector<const graph::CompiledModel*>> models_;  // by rank
  std::vector<StepReader> readers_;
};

std::unique_ptr<Device> make_device(bool asynchronous) {
  if (asynchronous) return std::make_unique<engine::DeferredDevice>();
  return make_cpu_device();
}

class Ranks {
  decl::Decl decl_, followed_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<graph::CompiledModel>> compiled_;
  ManualClock clock_;
  ManualHost host_;
  std::size_t num_read_ = 0, num_done_ = 0;
  std::unique_ptr<CodedTransport> transport_;

 public:
  // Which of so many does its turn next, where there is a choice.
  using Choose = std::function<std::size_t(std::size_t)>;

  explicit Ranks(const Setup& setup = {})
      : decl_(toy::language_model("lm", 7, false, setup.computes_together)),
        followed_(toy::language_model("lm", setup.salt, false, setup.computes_together)) {
    RankMesh ends;
    if (setup.computes_together)
      ends = *RankMesh::create({.tensor = setup.num_followers + 1}, [&](const std::vector<int>& ranks) {
        std::vector<std::unique_ptr<Communicator>> made;
        for (const int rank : ranks) made.push_back(std::make_unique<FakeCommunicator>(rank, aborted));
        return Result(std::move(made));
      });
    group = std::make_shared<StepGroup>(setup.num_followers + 1, std::move(ends), setup.entries_per_state);
    for (int rank = 0; rank <= setup.num_followers; ++rank) {
      devices_.push_back(make_device(setup.asynchronous));
      auto compiled = graph::CompiledModel::compile(rank == 0 ? decl_ : followed_);
      EXPECT_TRUE(compiled);
      compiled_.push_back(std::make_unique<graph::CompiledModel>(std::move(*compiled)));
    }
    if (setup.coded) {
      transport_ = std::make_unique<CodedTransport>(*group, compiled_);
      group->set_transport(transport_.get());
    }
    leader = std::make_unique<Worker>(WorkerOptions{.id = WorkerId(0),
                                                    .device = devices_[0].get(),
                                                    .host_pool = &host_,
                                                    .models = {model(0)},
                                                    .group = group,
                                                    .clock = &clock_},
                                      mesh);
    EXPECT_TRUE(leader->load().ok());
    for (int rank = 1; rank <= setup.num_followers; ++rank) {
      followers.push_back(
          std::make_unique<StepFollower>(StepFollowerOptions{.id = WorkerId(static_cast<std::uint32_t>(rank)),
                                                             .rank = rank,
                                                             .device = devices_[static_cast<std::size_t>(rank)].get(),
                                                             .models = {model(static_cast<std::size_t>(rank))},
                                                             .group = group},
                                         mesh));
      EXPECT_TRUE(followers.back()->load().ok());
    }
    group->set_pump([this] {
      if (!replay_one()) {
        ADD_FAILURE() << "the leader waits for ranks that have nothing to do";
        group->close();
      }
    });
  }

  void add(std::uint64_t id, std::int64_t max_tokens = 4, const std::string& fail = "") {
    auto params = std::make_shared<decl::RequestParams>();
    if (!fail.empty()) params->fields.set("fail", fail);
    params->sampling.max_tokens = max_tokens;
    params->sampling.ignore_eos = true;
    leader->send(wire::AddRequest{RequestId(id),
                                  0,
                                  params,
                                  graph::RequestPlacement(*compiled_[0], WorkerId(0)).table(),
                                  {{decl_.find_port("prompt"), {HostValue::blob("hello")}}}});
    start(id, "hear", 1);
  }
  void remove(std::uint64_t id) { leader->send(wire::RemoveRequest{RequestId(id)}); }

  // One turn of one rank, of the conductor or of the host; false when nothing is left to do.
  bool turn() {
    const std::size_t num = followers.size() + 1;
    const std::size_t first = choose(num);
    for (std::size_t i = 0; i < num; ++i) {
      const std::size_t which = (first + i) % num;
      if (which == 0 ? lead() : followers[which - 1]->replay_next()) return true;
    }
    return false;
  }
  void run() {
    while (turn()) {
    }
  }
  std::int64_t used() const {
    std::int64_t count = 0;
    const auto add = [&](const wire::WorkerStats& stats) {
      for (const auto& pool : stats.pools) count += pool.used;
    };
    add(leader->stats());
    for (const auto& each : followers) add(each->stats());
    return count;
  }
  std::vector<wire::RequestFailed> failed() const { return mesh.all<wire::RequestFailed>(); }
  std::size_t num_done() const { return num_done_; }

  Choose choose = [](std::size_t) { return std::size_t{0}; };
  std::set<int> aborted;  // ends of a group that computes together
  std::shared_ptr<StepGroup> group;
  RecordingMesh mesh;
  std::unique_ptr<Worker> leader;
  std::vector<std::unique_ptr<StepFollower>> followers;

 private:
  WorkerModel model(std::size_t rank) const {
    WorkerModel out{.name = "lm",
                    .compiled = compiled_[rank].get(),
                    .limits = {.max_requests = 2, .max_rows = 8, .max_tokens = 256}};
    for (std::uint16_t c = 0; c < decl_.components().size(); ++c)
      if (!decl_.components()[c].on_host()) out.components.emplace_back(c);
    if (rank == 0) out.in_step = out.components;
    return out;
  }
  void start(std::uint64_t id, const std::string& walk, std::int32_t pass) {
    graph::StartPass start{.walk = decl_.find_walk(walk), .pass = pass};
    start.kept = {{decl_.find_port(walk == "hear" ? "prompt" : "token"), pass - 1}};
    leader->send(wire::PartitionMessage{RequestId(id), {decl_.partition_of(start.walk), start}});
  }
  bool lead() {
    bool worked = leader->poll();
    worked |= !host_.jobs.empty();
    host_.run_all();
    for (; num_read_ < mesh.sent.size(); ++num_read_) {
      const auto* const report = std::get_if<wire::FragmentReport>(&mesh.sent[num_read_]);
      if (!report) continue;
      worked = true;
      if (report->done.pass == 1) {
        start(report->request.value, "say", 2);
      } else {
        ++num_done_;
        remove(report->request.value);
      }
    }
    return worked;
  }
  bool replay_one() {
    const std::size_t first = choose(followers.size());
    for (std::size_t i = 0; i < followers.size(); ++i)
      if (followers[(first + i) % followers.size()]->replay_next()) return true;
    return false;
  }
};

// Runs `body` once for each way to answer its first `depth` questions; those behind take turns.
void for_all_choices(std::size_t depth, const std::function<void(const Ranks::Choose&)>& body) {
  std::vector<std::size_t> made, ways;
  do {
    std::size_t at = 0;
    ways.resize(made.size());
    body([&](std::size_t num_ways) {
      if (num_ways == 1) return std::size_t{0};
      const std::size_t now = at++;
      if (now >= depth) return now % num_ways;
      if (now == made.size()) {
        made.push_back(0);
        ways.push_back(num_ways);
      }
      ways[now] = num_ways;
      return made[now];
    });
    while (!made.empty() && made.back() + 1 == ways[made.size() - 1]) made.pop_back();
    if (!made.empty()) ++made.back();
  } while (!made.empty());
}

void expect_in_step(const Ranks& ranks) {
  EXPECT_TRUE(ranks.group->failure().ok());
  EXPECT_TRUE(ranks.failed().empty());
  EXPECT_EQ(ranks.used(), 0);
  const auto led = ranks.leader->stats().components;
  for (const auto& each : ranks.followers) {
    const auto followed = each->stats().components;
    ASSERT_EQ(followed.size(), led.size());
    for (std::size_t c = 0; c < led.size(); ++c) {
      EXPECT_EQ(followed[c].num_steps, led[c].num_steps);
      EXPECT_EQ(followed[c].num_rows, led[c].num_rows);
      EXPECT_EQ(followed[c].num_ahead_rows, led[c].num_ahead_rows);
      EXPECT_EQ(followed[c].num_dropped_rows, led[c].num_dropped_rows);
    }
  }
}

// Every order of the turns of leader and followers up to a depth, at every place of a request's life: the ranks keep
// what they are built of from one order to the next, so each begins where another one ended.
void in_every_order(const Setup& setup, std::size_t depth) {
  Ranks ranks(setup);
  std::uint64_t last_id = 0;
  std::size_t num_orders = 0;
  for (const std::size_t skipped : {0, 6, 12}) {  // turns before the first choice
    for_all_choices(depth, [&](const Ranks::Choose& choose) {
      ++num_orders;
      std::size_t num_asked = 0;
      ranks.choose = [&](std::size_t num_ways) {
        return num_asked++ < skipped ? num_asked % num_ways : choose(num_ways);
      };
      ranks.add(++last_id, 3);
      ranks.add(++last_id, 2);
      ranks.run();
      ASSERT_EQ(ranks.num_done(), last_id);
      ASSERT_TRUE(ranks.group->failure().ok());
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_orders, 300u);
  expect_in_step(ranks);
}

TEST(StepGroup, AllOrdersOfOneFollower) { in_every_order({.num_followers = 1}, 7); }
TEST(StepGroup, AllOrdersOfTwoFollowers) { in_every_order({.num_followers = 2}, 5); }
TEST(StepGroup, AllOrdersWhereTheLeaderRunsAhead) { in_every_order({.num_followers = 1, .asynchronous = true}, 7); }

// As between processes: no rank has a pointer of another one's.
TEST(StepGroup, AllOrdersWhereEntriesAreBytes) { in_every_order({.num_followers = 1, .coded = true}, 7); }
TEST(StepGroup, AllOrdersWhereTheLeaderRunsAheadAndEntriesAreBytes) {
  in_every_order({.num_followers = 1, .asynchronous = true, .coded = true}, 7);
}

class RequestsThatGo : public ::testing::TestWithParam<std::pair<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(StepGroup, RequestsThatGo,
                         ::testing::Values(std::pair(false, false), std::pair(true, false), std::pair(false, true),
                                           std::pair(true, true)));
TEST_P(RequestsThatGo, AtAnyTurnLeaveNothingOnAnyRank) {
  {
    const auto [asynchronous, coded] = GetParam();
    Ranks ranks({.num_followers = 2, .asynchronous = asynchronous, .coded = coded});
    std::mt19937_64 random(asynchronous ? 11 : 12);
    ranks.choose = [&](std::size_t num_ways) { return random() % num_ways; };
    std::uint64_t last_id = 0;
    for (int turns = 0; turns < 150; ++turns) {
      const std::uint64_t removed = ++last_id, other = ++last_id;
      ranks.add(removed, 8);
      ranks.add(other, 4);
      for (int i = 0; i < turns; ++i) ranks.turn();
      ranks.remove(removed);
      ranks.run();
    }
    expect_in_step(ranks);
  }
}

TEST(StepGroup, AFullPoolIsFullOnAllRanks) {
  Ranks ranks;
  for (std::uint64_t id = 1; id <= 3; ++id) ranks.add(id);  // the pools hold two
  ranks.run();
  ASSERT_EQ(ranks.failed().size(), 1u);
  EXPECT_EQ(ranks.failed()[0].request, RequestId(3));
  EXPECT_EQ(ranks.num_done(), 2u);
  EXPECT_TRUE(ranks.group->failure().ok());
  EXPECT_EQ(ranks.used(), 0);
}

// What every rank fails alike ends a request, and not the group.
TEST(StepGroup, AFailureOfAllRanksIsTheRequests) {
  for (const char* const place : {"forward", "forward_throw", "fail_row", "declare"}) {
    Ranks ranks({.num_followers = 2});
    ranks.add(1, 4, place);
    ranks.add(2);
    ranks.run();
    EXPECT_TRUE(ranks.group->failure().ok()) << place;
    ASSERT_GE(ranks.failed().size(), 1u) << place;
    for (const auto& each : ranks.failed()) ranks.remove(each.request.value);
    ranks.add(3);
    ranks.run();
    EXPECT_GE(ranks.num_done(), 1u) << place;
    EXPECT_EQ(ranks.used(), 0) << place;
  }
}

void expect_ended(Ranks& ranks, const std::string& reason) {
  ASSERT_FALSE(ranks.group->failure().ok());
  EXPECT_THAT(ranks.group->failure().error().message, HasSubstr(reason));
  const auto gone = ranks.mesh.all<wire::WorkerFailed>();
  ASSERT_EQ(gone.size(), 1u);  // said once
  EXPECT_EQ(gone[0].error.code, Code::unavailable);
  ranks.add(100);
  ranks.run();
  ASSERT_FALSE(ranks.failed().empty());
  EXPECT_EQ(ranks.failed().back().request, RequestId(100));
  EXPECT_EQ(ranks.failed().back().error.code, Code::unavailable);
  for (std::uint64_t id = 1; id <= 2; ++id) ranks.remove(id);
  ranks.run();
  EXPECT_EQ(ranks.used(), 0);
}

TEST(StepGroup, ARankThatComputesSomethingElseEndsTheGroup) {
  for (const std::uint64_t entries : {1u, 16u}) {
    Ranks ranks({.salt = 8, .entries_per_state = entries});
    ranks.add(1, 40);
    ranks.run();
    expect_ended(ranks, "rank 1 of the group is in another state than its leader");
  }
}

TEST(StepGroup, AStepThatOneRankFailsEndsTheGroup) {
  for (const bool coded : {false, true}) {
    Ranks ranks({.salt = 8, .coded = coded});
    ranks.add(1, 4, "forward_of_8");
    ranks.run();
    ASSERT_EQ(ranks.failed().size(), 1u);
    EXPECT_EQ(ranks.failed()[0].error.code, Code::unavailable);
    EXPECT_THAT(ranks.failed()[0].error.message, HasSubstr("told to fail"));
    expect_ended(ranks, "rank 1 of the group failed a step: told to fail");
  }
}

// Also where the members are asked in another order, and the messages travel as bytes.
TEST(StepGroup, LetsGoAndLoadsAgainTogether) {
  for (const bool coded : {false, true}) {
    Ranks ranks({.num_followers = 2, .coded = coded});
    std::size_t turns = 0;
    ranks.choose = [&](std::size_t num_ways) { return turns++ % num_ways; };
    for (std::uint64_t id = 1; id <= 6; id += 2) {
      ranks.add(id, 3);
      ranks.add(id + 1, 2);
      ranks.run();
      EXPECT_EQ(ranks.num_done(), id + 1);
      ranks.leader->send(wire::Unload{});
      ranks.run();
      EXPECT_TRUE(ranks.leader->stats().pools.empty());
      for (const auto& each : ranks.followers) EXPECT_TRUE(each->stats().pools.empty());
      ranks.leader->send(wire::Load{});
      ranks.run();
      EXPECT_FALSE(ranks.leader->stats().pools.empty());
      expect_in_step(ranks);
    }
    EXPECT_EQ(ranks.mesh.all<wire::WorkerReady>().size(), 4u);  // the leader's, at first and after each time
  }
}

TEST(StepGroup, ARankThatCannotLoadAgainEndsTheGroup) {
  Ranks ranks({.num_followers = 1});
  ranks.leader->send(wire::Unload{});
  ranks.run();
  ranks.group->end("told to");
  ranks.leader->send(wire::Load{});
  ranks.run();
  ASSERT_EQ(ranks.mesh.all<wire::WorkerFailed>().size(), 1u);
  EXPECT_THAT(ranks.mesh.all<wire::WorkerFailed>().front().error.message, ::testing::HasSubstr("told to"));
}

TEST(StepGroup, AStepThatTheLeaderAloneFailsEndsTheGroup) {
  Ranks ranks({.salt = 8});
  ranks.add(1, 4, "forward_of_7");
  ranks.run();
  expect_ended(ranks, "the leader failed a step that rank 1 of the group ran: told to fail");
}

// The others may be waiting for it in the middle of their forward.
TEST(StepGroup, WhoFailsAStepThatIsComputedTogetherWakesTheOthers) {
  Ranks ranks({.computes_together = true});
  ranks.add(1, 4, "forward");
  ranks.run();
  EXPECT_EQ(ranks.aborted, (std::set<int>{0, 1}));
  expect_ended(ranks, "failed a step: told to fail");
}

}  // namespace
}  // namespace mstar::worker
