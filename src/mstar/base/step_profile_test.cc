#include "mstar/base/step_profile.h"

#include <gtest/gtest.h>

#include <string>

namespace mstar {
namespace {

std::int64_t now = 0;
std::int64_t manual_now() { return now; }

struct StepProfileTest : testing::Test {
  StepProfileTest() {
    now = 5;
    profile.add_component("m", "decoder");
  }
  // A phase of so many nanoseconds.
  void spend(Phase phase, std::int64_t ns) {
    const PhaseScope scope(&profile, phase);
    now += ns;
  }
  StepRecord only_record() {
    const auto all = profile.series();
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].last.size(), 1u);
    return all[0].last[0];
  }
  StepProfile profile{{.window_steps = 4, .num_spans = 3, .now_ns = manual_now}};
};

TEST_F(StepProfileTest, PhasesAddUpToTheTimeBetweenTwoEnds) {
  spend(Phase::idle, 1000);
  profile.end_step(0, StepKind::eager, 1, true);
  const std::int64_t begun = now;
  {
    const PhaseScope outer(&profile, Phase::schedule);
    now += 7;
    spend(Phase::admit, 20);
    now += 1;
    spend(Phase::admit, 300);
  }
  now += 2;  // no phase's
  spend(Phase::wait, 4000);
  profile.end_step(0, StepKind::replay, 32, true);
  const auto all = profile.series();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind, StepKind::replay);
  EXPECT_STREQ(row_bucket_name(all[0].bucket), "17-32");
  const StepRecord& record = all[0].last[0];
  EXPECT_EQ(record.rows, 32);
  EXPECT_EQ(record.at(Phase::schedule).ns, 8);
  EXPECT_EQ(record.at(Phase::admit).ns, 320);
  EXPECT_EQ(record.at(Phase::admit).count, 2);
  EXPECT_EQ(record.at(Phase::other).ns, 2);
  EXPECT_EQ(record.step_ns(), now - begun);
  EXPECT_EQ(record.host_ns(), 330);
  EXPECT_EQ(all[1].last[0].at(Phase::idle).ns, 1000);
  EXPECT_EQ(all[1].last[0].step_ns(), 0);  // to be idle is no part of a step
}

TEST_F(StepProfileTest, WorkIsHiddenWhileTheDeviceIsBusy) {
  spend(Phase::messages, 10);
  profile.look(false);
  spend(Phase::replay, 30);
  profile.look(false);
  spend(Phase::schedule, 200);
  profile.look(true);
  spend(Phase::wait, 5000);
  spend(Phase::idle, 50);
  spend(Phase::route, 60);
  profile.end_step(0, StepKind::replay, 1, false);
  const StepRecord record = only_record();
  EXPECT_EQ(record.exposed_ns(), 10 + 30 + 60);
  EXPECT_EQ(record.at(Phase::schedule).exposed_ns, 0);
  EXPECT_EQ(record.at(Phase::wait).exposed_ns, 0);
  EXPECT_EQ(record.at(Phase::idle).exposed_ns, 0);
  EXPECT_EQ(record.host_ns(), 300);
}

TEST_F(StepProfileTest, KeepsTheLastStepsOfEachSize) {
  for (const int rows : {1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 4096}) {
    spend(Phase::forward, rows);
    profile.end_step(0, StepKind::eager, rows, true);
  }
  EXPECT_EQ(profile.series().size(), kNumRowBuckets);
  for (int i = 0; i < 9; ++i) {
    spend(Phase::forward, 100 + i);
    profile.end_step(0, StepKind::eager, 1, true);
  }
  const StepSeries ones = profile.series().front();
  EXPECT_EQ(ones.num_steps, 10);
  std::int64_t sum = 0;
  for (const StepRecord& each : ones.last) sum += each.step_ns();
  EXPECT_EQ(ones.last.size(), 4u);
  EXPECT_EQ(sum, 105 + 106 + 107 + 108);
}

TEST_F(StepProfileTest, TheTimelineIsBounded) {
  spend(Phase::admit, 1);
  spend(Phase::plan, 2);
  spend(Phase::gather, 3);
  profile.add_flight(now - 2, 0, StepKind::replay, 7);
  const auto spans = profile.spans();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].phase, Phase::plan);
  EXPECT_EQ(spans[0].end_ns - spans[0].begin_ns, 2);
  EXPECT_EQ(spans[1].begin_ns, spans[0].end_ns);
  EXPECT_TRUE(spans[2].is_flight);
  EXPECT_EQ(spans[2].rows, 7);
  EXPECT_EQ(spans[2].end_ns - spans[2].begin_ns, 2);
}

struct Recorder final : RangeMarker {
  std::string text;
  void begin(const char* name) override { text += std::string("(") + name; }
  void end() override { text += ")"; }
};

TEST_F(StepProfileTest, AMarkerSeesPhasesInsideEachOther) {
  Recorder recorder;
  profile.set_marker(&recorder);
  {
    const PhaseScope outer(&profile, Phase::schedule);
    spend(Phase::admit, 1);
  }
  spend(Phase::wait, 1);
  EXPECT_EQ(recorder.text, "(schedule(admit))(wait)");
}

TEST(PhaseScope, IsNothingWithoutAProfile) {
  const PhaseScope scope(nullptr, Phase::wait);  // does not crash
}

}  // namespace
}  // namespace mstar
