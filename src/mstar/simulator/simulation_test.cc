// The simulator against what can be said by hand: each request ends once, times of steps add up, queues are as long as
// theory has them, and the same arguments give the same report.
#include "mstar/simulator/simulation.h"

#include <gmock/gmock.h>

#include <numeric>

#include "mstar/base/log.h"

namespace mstar::simulator {
namespace {

using conductor::Routing;
using models::Curve;
using models::StepCosts;

StepCosts flat(double step_us) {
  StepCosts costs;
  costs.rows = *Curve::through({{1, step_us}});
  return costs;
}

SimulationReport run(const SimulatedDeployment& deployment, const SimulatedLoad& load) {
  set_log_level("warn");  // not of each worker that it has loaded
  auto report = simulate(deployment, load);
  EXPECT_TRUE(report) << report.error().message;
  return report ? std::move(*report) : SimulationReport();
}

void expect_each_ended_once(const SimulationReport& report, int num_requests) {
  EXPECT_EQ(report.num_requests, num_requests);
  EXPECT_EQ(report.num_failed, 0);
  EXPECT_THAT(report.num_ends, testing::AllOf(testing::SizeIs(num_requests), testing::Each(1)));
}

TEST(Simulation, OneRowCostsItsStepsOneAfterTheOther) {
  for (const bool asynchronous : {false, true}) {
    SimulatedDeployment deployment{.costs = flat(1000)};
    deployment.costs.asynchronous = asynchronous;
    const auto report = run(deployment, {.num_requests = 3, .reply_tokens = {20, 20}});
    expect_each_ended_once(report, 3);
    EXPECT_EQ(report.num_tokens, 60);
    // The prompt's step gives the first token. Ahead, the step behind the last one was launched already.
    EXPECT_NEAR(report.latency_s.mean, 0.020, 0.0011) << asynchronous;
    EXPECT_NEAR(report.ttft_s.p50, 0.001, 0.0011) << asynchronous;
    EXPECT_NEAR(report.gap_s.p50, 0.001, 1e-6);
  }
}

TEST(Simulation, PromptsThatAreLongerThanAStepTakeSeveral) {
  SimulatedDeployment deployment{.costs = flat(1000)};
  deployment.costs.step_tokens = 64;
  deployment.costs.prompt_tokens = *Curve::through({{0, 0}, {64, 640}});
  const auto report = run(deployment, {.num_requests = 1, .prompt_tokens = {160, 160}, .reply_tokens = {1, 1}});
  EXPECT_NEAR(report.latency_s.mean, 0.003 + 0.0016, 1e-5);
}

TEST(Simulation, MessagesAndClientsTakeTheirTime) {
  SimulatedDeployment deployment{.costs = flat(1000)};
  deployment.costs.message_us = 50;
  deployment.costs.request_us = 300;
  deployment.costs.event_us = 70;
  deployment.costs.conductor_request_us = 25;
  deployment.costs.conductor_chunk_us = 5;
  const auto report = run(deployment, {.num_requests = 1, .reply_tokens = {1, 1}});
  // There, a message, the step, a message back, its chunk, and to the client.
  EXPECT_NEAR(report.ttft_s.p50, 1e-6 * (300 + 25 + 50 + 1000 + 50 + 5 + 70), 1e-6);
}

TEST(Simulation, RowsShareSteps) {
  SimulatedDeployment deployment{.costs = flat(1000), .max_rows = 8};
  const auto report = run(deployment, {.num_requests = 64, .num_clients = 8, .reply_tokens = {100, 100}});
  expect_each_ended_once(report, 64);
  EXPECT_NEAR(report.tokens_per_s, 8000, 400);
  deployment.max_rows = 4;  // the others take turns
  EXPECT_NEAR(run(deployment, {.num_requests = 64, .num_clients = 8, .reply_tokens = {100, 100}}).tokens_per_s, 4000,
              200);
}

// Jobs of one step each that take D, of Poisson arrivals at rate r: by Pollaczek and Khinchine one waits r D^2 / 2 (1 -
// r D).
TEST(Simulation, AQueueOfOneServerIsAsLongAsTheorySays) {
  constexpr double kJob = 0.010;
  for (const double busy : {0.3, 0.6, 0.8}) {
    const SimulatedDeployment deployment{.costs = flat(1e6 * kJob), .max_rows = 1};
    const auto report = run(deployment, {.num_requests = 20000,
                                         .num_clients = 0,
                                         .rate_per_s = busy / kJob,
                                         .prompt_tokens = {4, 4},
                                         .reply_tokens = {1, 1}});
    expect_each_ended_once(report, 20000);
    const double waits = busy * kJob / (2 * (1 - busy));
    EXPECT_NEAR(report.latency_s.mean, kJob + waits, 0.12 * (kJob + waits)) << busy;
    EXPECT_NEAR(report.busy, busy, 0.05 * busy);
  }
}

SimulatedLoad chats(std::uint64_t seed) {
  return {.num_requests = 300,
          .num_clients = 24,
          .prompt_tokens = {16, 200},
          .reply_tokens = {4, 40},
          .num_chats = 10,
          .seed = seed};
}

TEST(Simulation, TheSameSeedGivesTheSameReport) {
  SimulatedDeployment deployment{.costs = flat(1000), .num_replicas = 3};
  deployment.costs.asynchronous = true;
  for (const Routing routing : {Routing::random, Routing::least_loaded, Routing::prefix}) {
    deployment.routing = routing;
    deployment.seed = 5;
    const auto one = run(deployment, chats(2)), two = run(deployment, chats(2)), other = run(deployment, chats(3));
    EXPECT_EQ(one.end_s, two.end_s);
    EXPECT_EQ(one.num_events, two.num_events);
    EXPECT_EQ(one.shares, two.shares);
    EXPECT_NE(one.end_s, other.end_s);
  }
}

TEST(Simulation, EachRequestEndsOnceWhateverTheLoad) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SimulatedDeployment deployment{.costs = flat(1000), .num_replicas = 1 + static_cast<int>(seed % 4), .max_rows = 6};
    deployment.costs.asynchronous = seed % 2;
    deployment.costs.message_us = 20;
    deployment.routing = static_cast<Routing>(seed % 3);
    deployment.seed = seed;
    if (seed % 3 == 0) deployment.kv_tokens = 512;  // pages are too few for all: some are computed again
    SimulatedLoad load = chats(seed);
    if (seed % 5 == 0) {
      load.num_clients = 0;
      load.rate_per_s = 200;
    }
    if (seed % 4 == 1) deployment.max_concurrent_requests = 5;  // others wait in line
    const auto report = run(deployment, load);
    expect_each_ended_once(report, load.num_requests);
    EXPECT_NEAR(std::accumulate(report.shares.begin(), report.shares.end(), 0.0), 1, 1e-9);
    EXPECT_LE(report.busy, 1);
  }
}

TEST(Simulation, PrefixesAreFoundMoreOftenByPrefix) {
  SimulatedDeployment deployment{.costs = flat(1000), .num_replicas = 4};
  const auto load = chats(1);
  const double by_load = run(deployment, load).cached;
  deployment.routing = Routing::prefix;
  EXPECT_GT(run(deployment, load).cached, by_load + 0.05);
  deployment.prefix_cache = false;
  EXPECT_EQ(run(deployment, load).cached, 0);
}

// Pictures of one second, one step at a time: a wrong choice leaves a replica idle.
TEST(Simulation, LeastLoadedIsNeverWorseThanRandomForLongJobs) {
  for (const int clients : {2, 4}) {
    double gained = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      SimulatedDeployment deployment{.costs = flat(20000), .num_replicas = 2, .max_rows = 1};
      deployment.seed = seed;
      const SimulatedLoad load{.num_requests = 40, .num_clients = clients, .reply_tokens = {50, 50}, .seed = seed};
      const auto least = run(deployment, load);
      deployment.routing = Routing::random;
      const auto random = run(deployment, load);
      EXPECT_GE(least.tokens_per_s, random.tokens_per_s) << seed;
      gained += least.tokens_per_s / random.tokens_per_s - 1;
    }
    EXPECT_GT(gained / 10, 0.05) << clients;
  }
}

TEST(Simulation, RefusesWhatCannotBe) {
  const SimulatedDeployment deployment{.costs = flat(1000)};
  EXPECT_FALSE(simulate({.costs = flat(1000), .num_replicas = 0}, {}));
  EXPECT_FALSE(simulate(deployment, {.num_requests = 0}));
  EXPECT_FALSE(simulate(deployment, {.num_clients = 0}));
  EXPECT_FALSE(simulate(deployment, {.prompt_tokens = {5, 4}}));
  EXPECT_FALSE(simulate(deployment, {.reply_tokens = {1, 1 << 20}}));
}

}  // namespace
}  // namespace mstar::simulator
