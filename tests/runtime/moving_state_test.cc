// Prompts on some workers, answers on others, in seeded orders of events. A token of the toy is wrong unless keys,
// state and draws are those of the committed rows before it, wherever these ran.
#include <gtest/gtest.h>

#include "mstar/worker/toy_support_test.h"
#include "simulation.h"

namespace mstar::sim {
namespace {

using toy::expected_text;
using toy::request;

// Prompts on device workers 0 and 1, answers on 2 and 3; `several` false: on 0 and 1.
std::vector<ModelSpec> split_model(bool several) {
  std::vector<ModelSpec> models;
  models.push_back({toy::language_model("lm"), {}});
  if (several) {
    models.back().replicas = {{"encoder", {0, 1}}};
    models.back().by_walk = {{{"decoder", "hear"}, {0, 1}}, {{"decoder", "say"}, {2, 3}}};
  } else {
    models.back().by_walk = {{{"decoder", "hear"}, {0}}, {{"decoder", "say"}, {1}}};
  }
  return models;
}

// State does not move between ranks that work in step; a start with such a placement is refused.
class MovingState : public testing::Test {
 protected:
  void SetUp() override {
    if (default_in_step() > 1) GTEST_SKIP() << "ranks in step keep their state";
  }
};

std::uint64_t states_in(Simulation& sim, std::uint32_t num_workers) {
  std::uint64_t count = 0;
  for (std::uint32_t w = 1; w <= num_workers; ++w) count += sim.worker(w).stats().num_states_in;
  return count;
}

TEST_F(MovingState, AnswersAreAsIfItHadStayedInAnyOrderOfEvents) {
  for (const bool asynchronous : {false, true})
    for (const bool several : {false, true})
      for (std::uint64_t seed = 0; seed < 25; ++seed) {
        const std::uint32_t num_workers = several ? 4 : 2;
        Simulation sim({.seed = seed, .num_device_workers = num_workers, .asynchronous = asynchronous},
                       split_model(several));
        std::vector<Simulation::Submitted> submitted;
        std::vector<std::string> prompts;
        for (int i = 0; i < 8; ++i) {
          prompts.push_back("prompt " + std::to_string(i * i));
          submitted.push_back(sim.submit(request("lm", prompts.back(), 12, true)));
          for (std::uint64_t k = sim.random()() % 60; k > 0; --k) sim.step();
        }
        sim.run();
        for (std::size_t i = 0; i < submitted.size(); ++i) {
          ASSERT_EQ(submitted[i].answer->num_terminal, 1) << seed;
          EXPECT_FALSE(submitted[i].answer->error) << submitted[i].answer->error->message;
          EXPECT_EQ(submitted[i].answer->text, expected_text(prompts[i], 12, true)) << seed;
        }
        EXPECT_EQ(states_in(sim, num_workers), 8u);
        sim.expect_empty();
      }
}

TEST_F(MovingState, AnAbortAtAnyTimeLeavesNothingOnEitherWorker) {
  int num_cancelled = 0, num_finished = 0;
  for (int steps = 0; steps < 200; ++steps) {
    Simulation sim({.seed = static_cast<std::uint64_t>(steps), .num_device_workers = 2, .asynchronous = steps % 2 == 1},
                   split_model(false));
    const auto other = sim.submit(request("lm", "other", 5, true));
    const auto aborted = sim.submit(request("lm", "aborted", 5, true));
    for (int i = 0; i < steps; ++i) sim.step();
    sim.conductor().abort(aborted.id);
    sim.run();
    ASSERT_EQ(aborted.answer->num_terminal, 1);
    EXPECT_EQ(aborted.answer->num_chunks_after_end, 0);
    num_cancelled += aborted.answer->error.has_value();
    num_finished += aborted.answer->finished.has_value();
    EXPECT_FALSE(other.answer->error);
    EXPECT_EQ(other.answer->text, expected_text("other", 5, true));
    sim.expect_empty();
  }
  EXPECT_GT(num_cancelled, 50);
  EXPECT_GT(num_finished, 5);
}

TEST_F(MovingState, AWorkerThatDiesAtAnyTimeEndsItsRequestsOnce) {
  int num_lost = 0;
  for (int steps = 0; steps < 160; ++steps) {
    const WorkerId killed(steps % 2 ? 1 : 2);
    Simulation sim({.seed = static_cast<std::uint64_t>(steps), .num_device_workers = 2, .asynchronous = steps % 4 > 1},
                   split_model(false));
    std::vector<Simulation::Submitted> submitted;
    for (int i = 0; i < 3; ++i) submitted.push_back(sim.submit(request("lm", "lost", 8, true)));
    for (int i = 0; i < steps * 2; ++i) sim.step();
    sim.kill_worker(killed);
    sim.run();
    for (const auto& each : submitted) {
      ASSERT_EQ(each.answer->num_terminal, 1) << steps;
      if (each.answer->error) {
        EXPECT_EQ(each.answer->error->code, Code::unavailable) << each.answer->error->message;
        ++num_lost;
      } else {
        EXPECT_EQ(each.answer->text, expected_text("lost", 8, true));
      }
    }
    sim.restart_worker(killed);
    sim.run();
    const auto again = sim.submit(request("lm", "again", 8, true));
    sim.run();
    EXPECT_FALSE(again.answer->error);
    EXPECT_EQ(again.answer->text, expected_text("again", 8, true));
    sim.expect_empty();
  }
  EXPECT_GT(num_lost, 100);
}

}  // namespace
}  // namespace mstar::sim
