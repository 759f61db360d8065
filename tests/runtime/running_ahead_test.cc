// The same requests with workers that run a step ahead and with workers that don't: same bytes, same counts, and at
// most one wasted row for a stop.
#include <gtest/gtest.h>

#include "mstar/worker/toy_support_test.h"
#include "simulation.h"

namespace mstar::sim {
namespace {

using toy::expected_text;
using toy::expected_tokens;
using toy::failing_request;
using toy::request;

std::vector<ModelSpec> one_model(bool split = false) {
  std::vector<ModelSpec> models;
  models.push_back({toy::language_model("lm"), {}});
  if (split) models.back().replicas = {{"encoder", {0}}, {"decoder", {1}}};
  return models;
}

struct Asked {
  std::string prompt;
  std::int64_t budget = 0;
  bool ignore_eos = false;
};

std::vector<Asked> random_requests(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::vector<Asked> out;
  for (int i = 0; i < count; ++i) {
    constexpr std::int64_t kBudgets[] = {1, 2, 3, 4, 7, 16, 30};
    out.push_back({std::string(1 + random() % 20, static_cast<char>('a' + random() % 26)), kBudgets[random() % 7],
                   random() % 2 == 0});
  }
  return out;
}

// Iterations of the decode loop that ended at a stop id before their cap: each may waste one row.
bool wastes_a_row(const Asked& asked) {
  const auto tokens = expected_tokens(asked.prompt, asked.budget, asked.ignore_eos);
  return static_cast<std::int64_t>(tokens.size()) < asked.budget && tokens.size() > 1;
}

wire::WorkerStats::Component answer_all(const Options& options, const std::vector<Asked>& asked) {
  Simulation sim(options, one_model(options.num_device_workers > 1));
  std::vector<Simulation::Submitted> submitted;
  for (const Asked& each : asked) {
    submitted.push_back(sim.submit(request("lm", each.prompt, each.budget, each.ignore_eos)));
    for (std::uint64_t k = sim.random()() % 30; k > 0; --k) sim.step();
  }
  sim.run();
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Answer& answer = *submitted[i].answer;
    const Asked& each = asked[i];
    const auto tokens = expected_tokens(each.prompt, each.budget, each.ignore_eos);
    EXPECT_EQ(answer.num_terminal, 1);
    EXPECT_FALSE(answer.error);
    EXPECT_EQ(answer.text, expected_text(each.prompt, each.budget, each.ignore_eos));
    if (answer.finished) {
      EXPECT_EQ(answer.finished->usage.completion_tokens, static_cast<std::int64_t>(tokens.size()));
      EXPECT_TRUE(!each.ignore_eos || answer.finished->usage.completion_tokens == each.budget);
    }
  }
  sim.expect_empty();
  return sim.total("decoder");
}

TEST(RunningAhead, SameAnswersAndCountsInAnyOrderOfEvents) {
  std::int64_t num_ahead = 0, num_dropped = 0, num_stops = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto asked = random_requests(seed, 10);
    Options options{.seed = seed, .num_device_workers = 1 + static_cast<std::uint32_t>(seed % 2)};
    options.asynchronous = false;
    const auto on_cpu = answer_all(options, asked);
    EXPECT_EQ(on_cpu.num_ahead_rows, 0) << "the CPU is read at once";
    EXPECT_EQ(on_cpu.num_dropped_rows, 0);
    options.asynchronous = true;
    options.run_ahead = false;
    const auto off = answer_all(options, asked);
    EXPECT_EQ(off.num_ahead_rows, 0);
    EXPECT_EQ(off.num_dropped_rows, 0);
    EXPECT_EQ(off.num_rows, on_cpu.num_rows);
    options.run_ahead = true;
    const auto ahead = answer_all(options, asked);
    EXPECT_EQ(ahead.num_rows, on_cpu.num_rows + ahead.num_dropped_rows) << "nothing but dropped rows is extra";
    const auto most = std::count_if(asked.begin(), asked.end(), wastes_a_row);
    EXPECT_LE(ahead.num_dropped_rows, most);
    num_ahead += ahead.num_ahead_rows;
    num_dropped += ahead.num_dropped_rows;
    num_stops += most;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(num_ahead, 1000);
  EXPECT_GT(num_dropped, 0);
  RecordProperty("ahead", std::to_string(num_ahead));
  RecordProperty("dropped", std::to_string(num_dropped));
  RecordProperty("stops", std::to_string(num_stops));
}

// max_tokens x ignore_eos: the budget is the loop's cap, so no row runs past it.
TEST(RunningAhead, ABudgetWastesNothing) {
  for (const std::int64_t budget : {1, 2, 4, 16})
    for (const bool ignore_eos : {true, false}) {
      Asked asked{"budget", budget, ignore_eos};
      Options options{.seed = 5};
      options.asynchronous = true;
      const auto counted = answer_all(options, {asked});
      const auto tokens = expected_tokens(asked.prompt, budget, ignore_eos);
      const bool stops = wastes_a_row(asked);
      EXPECT_EQ(counted.num_rows - counted.num_dropped_rows, static_cast<std::int64_t>(tokens.size()));
      EXPECT_LE(counted.num_dropped_rows, stops);
      // One request alone: the prompt behind its encoder, and every token but the first of the loop.
      if (!stops) {
        EXPECT_EQ(counted.num_ahead_rows, std::max<std::int64_t>(1, budget - 1));
      }
    }
}

TEST(RunningAhead, FailuresStayWithTheirRequest) {
  const std::vector<std::pair<std::string, std::int64_t>> places = {
      {"tokenise", 0},      {"wrong_outputs", 0}, {"declare", 0},  {"declare", 5},
      {"declare_throw", 4}, {"fail_row", 0},      {"fail_row", 6}, {"forward", 3},
      {"forward_throw", 3}, {"detokenise", 0},    {"plan", 0}};
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const auto& [place, at] : places) {
      Options options{.seed = seed};
      options.asynchronous = true;
      Simulation sim(options, one_model());
      const auto before = sim.submit(request("lm", "before", 16, true));
      const auto bad = sim.submit(failing_request("lm", "bad", place, at));
      const auto after = sim.submit(request("lm", "after", 16, true));
      sim.run();
      ASSERT_EQ(bad.answer->num_terminal, 1);
      ASSERT_TRUE(bad.answer->error) << place;
      const bool whole_step = place == "forward" || place == "forward_throw";
      for (const auto& [other, text] : {std::pair{before, "before"}, std::pair{after, "after"}}) {
        ASSERT_EQ(other.answer->num_terminal, 1) << place;
        if (whole_step && other.answer->error) continue;
        ASSERT_FALSE(other.answer->error) << place << ": " << other.answer->error->message;
        EXPECT_EQ(other.answer->text, expected_text(text, 16, true)) << place;
      }
      const auto later = sim.submit(request("lm", "later", 16, true));
      sim.run();
      EXPECT_EQ(later.answer->text, expected_text("later", 16, true)) << place;
      sim.expect_empty();
      if (HasFailure()) FAIL() << "seed " << seed << ", " << place;
    }
}

// A row that is ahead when its request's last wanted row stops must not fail the request, whatever it would have done.
TEST(RunningAhead, AFailureOfARowThatNeverComesToBeIsNotSeen) {
  int num_tried = 0;
  for (int text = 0; text < 60; ++text) {
    const std::string prompt = "text " + std::to_string(text);
    const auto tokens = expected_tokens(prompt, 16, false);
    if (tokens.size() < 3 || tokens.back() != toy::kStopId) continue;
    ++num_tried;
    const auto after_the_stop = static_cast<std::int64_t>(tokens.size()) - 1;  // iteration of the decode loop
    for (const std::string place : {"declare", "declare_throw", "fail_row", "forward"}) {
      Options options{.seed = static_cast<std::uint64_t>(text)};
      options.asynchronous = true;
      Simulation sim(options, one_model());
      auto api = failing_request("lm", prompt, place, after_the_stop);
      api.fields.set("ignore_eos", false);
      const auto submitted = sim.submit(std::move(api));
      sim.run();
      ASSERT_EQ(submitted.answer->num_terminal, 1);
      ASSERT_FALSE(submitted.answer->error) << place << ": " << submitted.answer->error->message;
      EXPECT_EQ(submitted.answer->text, expected_text(prompt, 16, false));
      sim.expect_empty();
    }
  }
  EXPECT_GT(num_tried, 5);
}

TEST(RunningAhead, AbortsLeaveNothingBehindInAnyState) {
  for (int steps = 0; steps < 160; ++steps) {
    Options options{.seed = static_cast<std::uint64_t>(steps), .num_device_workers = 2, .max_concurrent_requests = 2};
    options.asynchronous = true;
    Simulation sim(options, one_model(true));
    const auto other = sim.submit(request("lm", "other", 9, true));
    const auto aborted = sim.submit(request("lm", "aborted", 9, true));
    for (int i = 0; i < steps; ++i) sim.step();
    sim.conductor().abort(aborted.id);
    sim.run();
    ASSERT_EQ(aborted.answer->num_terminal, 1);
    EXPECT_EQ(aborted.answer->num_chunks_after_end, 0);
    EXPECT_EQ(other.answer->text, expected_text("other", 9, true));
    const auto again = sim.submit(request("lm", "again", 9, true));
    sim.run();
    EXPECT_EQ(again.answer->text, expected_text("again", 9, true));
    sim.expect_empty();
  }
}

}  // namespace
}  // namespace mstar::sim
