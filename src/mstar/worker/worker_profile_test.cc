// What a profile says of a worker's steps, by a clock that ticks each time that it is read.
#include <gtest/gtest.h>

#include "mstar/base/step_profile.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/deferred_device_fixture.h"
#include "mstar/worker/lone_worker_test.h"

namespace mstar::worker {
namespace {

std::int64_t num_readings = 0;
std::int64_t tick() { return ++num_readings; }

StepProfile* make_profile() {
  num_readings = 0;
  return new StepProfile({.window_steps = 64, .num_spans = 4096, .now_ns = tick});
}

class ProfileTest : public LoneWorker {
 protected:
  explicit ProfileTest(std::unique_ptr<Device> device, bool run_ahead, StepProfile* profile)
      : LoneWorker(std::move(device), run_ahead, false, profile), profile_(profile) {}
  explicit ProfileTest(std::unique_ptr<Device> device = std::make_unique<engine::DeferredDevice>(),
                       bool run_ahead = true)
      : ProfileTest(std::move(device), run_ahead, make_profile()) {}
  ~ProfileTest() override { worker_.reset(); }

  // Answers with so many tokens.
  void answer(int tokens) {
    give(add(1));
    give(start(1, "hear"));
    settle();
    auto message = start(1, "say", 2);
    auto& begin = std::get<graph::StartPass>(message.signal.signal);
    begin.caps = {{graph::LoopIndex{0}, tokens}};
    begin.kept = {{decl_.find_port("token"), 1}};
    begin.stream_base = {{decl_.find_port("token"), 1}};
    give(message);
    settle();
    EXPECT_TRUE(mesh_.all<wire::RequestFailed>().empty());
  }
  std::vector<StepRecord> decoder_steps(StepKind kind) const {
    for (const StepSeries& each : profile_->series())
      if (each.component == "decoder" && each.kind == kind) return each.last;
    return {};
  }

  std::unique_ptr<StepProfile> profile_;
};

struct ReadAtOnce : ProfileTest {
  ReadAtOnce() : ProfileTest(std::make_unique<engine::DeferredDevice>(), false) {}
};
struct OnACpu : ProfileTest {
  OnACpu() : ProfileTest(make_cpu_device()) {}
};

TEST_F(ProfileTest, AllTimeUpToTheLastStepsEndIsSomePhases) {
  answer(12);
  give(wire::RemoveRequest{RequestId(1)});  // statistics of living requests may lag
  std::int64_t sum = 0, num_steps = 0, num_ahead = 0;
  for (const StepSeries& each : profile_->series()) {
    EXPECT_EQ(each.model, "lm");
    EXPECT_EQ(each.last.size(), static_cast<std::size_t>(each.num_steps));
    num_steps += each.num_steps;
    for (const StepRecord& record : each.last) {
      sum += record.step_ns();
      EXPECT_EQ(record.at(Phase::idle).ns, 0);
      EXPECT_LE(record.exposed_ns(), record.host_ns());
      num_ahead += record.at(Phase::promise).count;
    }
  }
  std::int64_t steps = 0;
  for (const auto& component : worker_->stats().components) steps += component.num_steps;
  EXPECT_EQ(num_steps, steps);
  EXPECT_EQ(num_ahead, steps);
  // Each reading moves the clock by one; the last end's is the last that counts, and what came after it is few.
  std::int64_t last_end = 0;
  for (const PhaseSpan& span : profile_->spans())
    if (!span.is_flight && span.phase == Phase::route) last_end = std::max(last_end, span.end_ns);
  EXPECT_EQ(sum, last_end - 1 - 1) << "the last step ends just before its route does; the first reading began it all";
}

TEST_F(ProfileTest, AStepInFlightHidesTheHostsWork) {
  answer(12);
  int num_hidden = 0;
  for (const StepRecord& record : decoder_steps(StepKind::eager)) {
    EXPECT_EQ(record.rows, 1);
    EXPECT_GT(record.host_ns(), 0);
    EXPECT_GT(record.at(Phase::wait).ns, 0);
    num_hidden += record.exposed_ns() == 0;
  }
  // All but those that the loop begins and ends with.
  EXPECT_GE(num_hidden, 9);
  int num_flights = 0;
  for (const PhaseSpan& span : profile_->spans()) num_flights += span.is_flight;
  std::int64_t num_steps = 0;
  for (const StepSeries& each : profile_->series()) num_steps += each.num_steps;
  EXPECT_EQ(num_flights, num_steps);
}

TEST_F(ReadAtOnce, TheLaunchIsExposedAndPromisesNothing) {
  answer(12);
  const auto steps = decoder_steps(StepKind::eager);
  EXPECT_GE(steps.size(), 12u);
  for (const StepRecord& record : steps) {
    EXPECT_GT(record.at(Phase::forward).ns, 0);
    EXPECT_EQ(record.at(Phase::forward).exposed_ns, record.at(Phase::forward).ns);
    EXPECT_EQ(record.at(Phase::admit).exposed_ns, record.at(Phase::admit).ns);
    EXPECT_EQ(record.at(Phase::promise).count, 0);
  }
}

TEST_F(OnACpu, NothingIsHidden) {
  answer(12);
  const auto steps = decoder_steps(StepKind::eager);
  EXPECT_GE(steps.size(), 12u);
  for (const StepRecord& record : steps) {
    EXPECT_EQ(record.exposed_ns(), record.host_ns());
    EXPECT_EQ(record.at(Phase::wait).count, 0);
  }
}

}  // namespace
}  // namespace mstar::worker
