// The processes of workers, with workers that misbehave.
#include "worker_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

namespace mstar::apps {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// One process of the fake worker, and what it is heard to say.
class Fake {
 public:
  explicit Fake(const std::string& mode, std::chrono::milliseconds hang_timeout = 60s,
                std::chrono::milliseconds first_delay = 1ms, std::chrono::milliseconds load_timeout = 60s) {
    WorkerProcessOptions options{.program = MSTAR_FAKE_WORKER, .first_delay = first_delay, .longest_delay = 400ms};
    options.hang_timeout = hang_timeout;
    options.load_timeout = load_timeout;
    options.setups.push_back({.worker = WorkerId(1)});
    options.setups.back().models.push_back({.model = "none", .name = mode});
    options.to_conductor = [this](wire::ToConductor message) {
      const auto now = Clock::now();
      std::lock_guard lock(mutex_);
      if (const auto* failed = std::get_if<wire::WorkerFailed>(&message)) failures_.emplace_back(failed->error, now);
      if (std::holds_alternative<wire::WorkerReady>(message)) readies_.push_back(now);
      if (const auto* failed = std::get_if<wire::RequestFailed>(&message)) failed_requests_.push_back(failed->request);
      num_pongs_ += std::holds_alternative<wire::Removed>(message);
      changed_.notify_all();
    };
    options.to_worker = [](WorkerId, wire::ToWorker) {};
    processes_ = std::make_unique<WorkerProcesses>(std::move(options));
  }
  WorkerProcesses& processes() { return *processes_; }
  bool wait_failures(std::size_t count) {
    return wait([&] { return failures_.size() >= count; });
  }
  bool wait_pongs(int count) {
    return wait([&] { return num_pongs_ >= count; });
  }
  bool wait_readies(std::size_t count) {
    return wait([&] { return readies_.size() >= count; });
  }
  std::vector<std::pair<Error, Clock::time_point>> failures() {
    std::lock_guard lock(mutex_);
    return failures_;
  }
  std::vector<RequestId> failed_requests() {
    std::lock_guard lock(mutex_);
    return failed_requests_;
  }
  std::vector<Clock::time_point> readies() {
    std::lock_guard lock(mutex_);
    return readies_;
  }

 private:
  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, condition);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Error, Clock::time_point>> failures_;
  std::vector<Clock::time_point> readies_;
  std::vector<RequestId> failed_requests_;
  int num_pongs_ = 0;
  std::unique_ptr<WorkerProcesses> processes_;  // last: it calls back
};

TEST(WorkerProcesses, ALoopThatStandsStillIsAHangThoughTheProcessAnswers) {
  Fake fake("hangs", 200ms);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_failures(2));  // it is started again, and hangs again
  for (const auto& [error, at] : fake.failures()) {
    EXPECT_EQ(error.code, Code::unavailable);
    EXPECT_EQ(error.message, "its process stood still for 0.2 s and was killed");
  }
  EXPECT_GE(fake.processes().num_restarts(WorkerId(1)), 1);
}

TEST(WorkerProcesses, AProcessThatDoesNotAnswerIsAHang) {
  Fake fake("mute", 200ms);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_failures(1));
  EXPECT_NE(fake.failures()[0].first.message.find("stood still"), std::string::npos);
}

TEST(WorkerProcesses, OneThatLoadsNothingMoreIsAHangThoughTheProcessAnswers) {
  Fake fake("stuck", 60s, 1ms, 200ms);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_failures(1));
  EXPECT_EQ(fake.failures()[0].first.message, "its process had loaded nothing more for 0.2 s and was killed");
  EXPECT_EQ(fake.processes().num_restarts(WorkerId(1)), 0);  // it never was ready
}

TEST(WorkerProcesses, OneThatStopsWhileItLoadsIsAHang) {
  Fake fake("loads", 60s, 1ms, 2s);
  ASSERT_TRUE(fake.processes().start());
  const auto pid = fake.processes().pid(WorkerId(1));
  ASSERT_TRUE(pid);
  ASSERT_EQ(::kill(*pid, SIGSTOP), 0);
  ASSERT_TRUE(fake.wait_failures(1));
  EXPECT_NE(fake.failures()[0].first.message.find("loaded nothing more for 2 s"), std::string::npos);
}

TEST(WorkerProcesses, OneThatGetsOnWithLoadingIsLeftAloneHoweverLongItTakes) {
  Fake fake("loads", 60s, 1ms, 2s);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_readies(1));  // after twice as many looks as make a hang
  EXPECT_TRUE(fake.failures().empty());
}

TEST(WorkerProcesses, OneThatGetsOnIsLeftAlone) {
  Fake fake("well", 4s);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_pongs(8));  // twice as many looks as make a hang
  EXPECT_TRUE(fake.failures().empty());
  EXPECT_EQ(fake.processes().num_restarts(WorkerId(1)), 0);
}

TEST(WorkerProcesses, EachDeathInARowWaitsTwiceAsLong) {
  Fake fake("dies", 60s, 20ms);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_readies(5));
  const auto failures = fake.failures();
  const auto readies = fake.readies();
  ASSERT_GE(failures.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(failures[i].first.message, "its process ended with status 3");
    EXPECT_GE(readies[i + 1] - failures[i].second, 20ms * (1 << i)) << i;
  }
}

TEST(WorkerProcesses, NonsenseEndsTheProcessWithThatReason) {
  Fake fake("nonsense");
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_failures(1));
  EXPECT_NE(fake.failures()[0].first.message.find("frame"), std::string::npos) << fake.failures()[0].first.message;
}

// Between a death and the word of it nothing else may end a request: the client is to hear why.
TEST(WorkerProcesses, MessagesToADyingProcessAreTakenUntilItsDeathIsTold) {
  Fake fake("well", 60s, 400ms);
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_readies(1));
  const auto pid = fake.processes().pid(WorkerId(1));
  ASSERT_TRUE(pid);
  ASSERT_EQ(::kill(*pid, SIGKILL), 0);
  bool told = false, taken = true;
  while (taken) {
    told = !fake.failures().empty();  // before the message
    taken = fake.processes().send(WorkerId(1), wire::RemoveRequest{RequestId(1)});
    if (!taken) {
      EXPECT_FALSE(fake.failures().empty());
    }
    if (told && fake.readies().size() > 1) break;  // a slow machine: the next life has begun
  }
  ASSERT_TRUE(fake.wait_failures(1));
  EXPECT_NE(fake.failures()[0].first.message.find("killed by signal 9"), std::string::npos);
}

TEST(WorkerProcesses, AValueThatCannotBeSentFailsItsRequest) {
  Fake fake("well");
  ASSERT_TRUE(fake.processes().start());
  const HostValue torn(DType::f32, {3}, std::vector<std::byte>(8));
  for (const std::uint64_t id : {4, 5})
    EXPECT_TRUE(fake.processes().send(
        WorkerId(1),
        wire::PartitionMessage{RequestId(id), {decl::PartitionRef(0), graph::KeptValue{decl::PortRef(0), 1, {torn}}}}));
  EXPECT_EQ(fake.failed_requests(), (std::vector<RequestId>{RequestId(4), RequestId(5)}));
  EXPECT_TRUE(fake.failures().empty());
}

TEST(WorkerProcesses, OneThatWasNeverReadyIsNotStartedAgain) {
  ::setenv("MSTAR_FAKE_WORKER_DIES", "1", 1);
  Fake fake("well");
  ASSERT_TRUE(fake.processes().start());
  ASSERT_TRUE(fake.wait_failures(1));
  ::unsetenv("MSTAR_FAKE_WORKER_DIES");
  EXPECT_EQ(fake.failures()[0].first.message, "its process ended with status 7");
  bool taken = true;  // for the moment in which the death is being told
  for (int i = 0; i < 1000 && taken; ++i) {
    taken = fake.processes().send(WorkerId(1), wire::RemoveRequest{RequestId(1)});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(taken);
  EXPECT_EQ(fake.processes().pid(WorkerId(1)), std::nullopt);
  EXPECT_EQ(fake.processes().num_restarts(WorkerId(1)), 0);
  EXPECT_TRUE(fake.readies().empty());
}

}  // namespace
}  // namespace mstar::apps
