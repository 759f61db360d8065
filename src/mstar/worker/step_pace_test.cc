#include "mstar/worker/step_pace.h"

#include <gtest/gtest.h>

namespace mstar::worker {
namespace {

TEST(StepPace, WhatIsNotKnownYetIsNotWaitedFor) {
  StepPace pace;
  EXPECT_EQ(pace.slack_us(2000), 0);
  pace.add(2000, 7000, 2000);
  EXPECT_EQ(pace.slack_us(2000), 0) << "one of its kind may have been an exception";
  pace.add(2000, 7100, 2500);
  EXPECT_EQ(pace.slack_us(2000), 7000 - 2500 - StepPace::margin_us(7000));
  EXPECT_EQ(pace.slack_us(100), 0) << "of other sizes nothing is known";
}

TEST(StepPace, TheShorterOfTwoAndTheLongerLaunchCount) {
  StepPace pace;
  pace.add(640, 9000, 100);
  pace.add(641, 5000, 900);
  EXPECT_EQ(pace.slack_us(640), 5000 - 900 - StepPace::margin_us(5000));
  pace.add(642, 9500, 200);
  EXPECT_EQ(pace.slack_us(640), 5000 - 900 - StepPace::margin_us(5000));
  pace.add(643, 9000, 300);
  EXPECT_EQ(pace.slack_us(640), 9000 - 300 - StepPace::margin_us(9000));
}

TEST(StepPace, ShortStepsAreFollowedAtOnce) {
  StepPace pace;
  for (int i = 0; i < 2; ++i) pace.add(40, StepPace::kLeastSlackUs + 100 + 99, 100);
  EXPECT_EQ(pace.slack_us(40), 0);
}

}  // namespace
}  // namespace mstar::worker
