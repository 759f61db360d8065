#include "open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace mstar::apps {
namespace {

TEST(OpenFiles, WhatFitsBesideTheOwnOnes) {
  EXPECT_EQ(connections_within(1024, 100), 100u);
  EXPECT_EQ(connections_within(1024, 1024), 1024 - kOwnFiles);
  EXPECT_EQ(connections_within(kOwnFiles, 1024), 1u);
  EXPECT_EQ(connections_within(0, 1024), 1u);
  EXPECT_NE(open_files_warning(1024, 896).find("at most 896"), std::string::npos);
}

TEST(OpenFiles, TheSoftLimitGrowsAsFarAsTheHardOneLets) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 2 * kOwnFiles) GTEST_SKIP() << "the hard limit is too low";
  rlimit low = before;
  low.rlim_cur = kOwnFiles;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(raise_open_files(50), 50u);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, kOwnFiles + 50);
  EXPECT_EQ(now.rlim_max, before.rlim_max);
  EXPECT_EQ(raise_open_files(10), 10u);
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, kOwnFiles + 50) << "it never shrinks";
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace mstar::apps
