// Requests through conductor and workers, in many orders of events: answers, failures, aborts, placement.
#include <gtest/gtest.h>

#include <set>

#include "mstar/worker/toy_support_test.h"
#include "simulation.h"

namespace mstar::sim {
namespace {

using toy::expected_text;
using toy::failing_request;
using toy::request;

std::vector<ModelSpec> one_model() {
  std::vector<ModelSpec> models;
  models.push_back({toy::language_model("lm"), {}});
  return models;
}

// Encoder on one worker, decoder on another.
std::vector<ModelSpec> split_model() {
  std::vector<ModelSpec> models;
  models.push_back({toy::language_model("lm"), {{"encoder", {0}}, {"decoder", {1}}}});
  return models;
}

void expect_answer(const Simulation::Submitted& submitted, const std::string& text) {
  ASSERT_EQ(submitted.answer->num_terminal, 1);
  EXPECT_FALSE(submitted.answer->error) << submitted.answer->error->message;
  EXPECT_EQ(submitted.answer->text, text);
  EXPECT_EQ(submitted.answer->num_chunks_after_end, 0);
}

void expect_failure(const Simulation::Submitted& submitted, Code code, const std::string& part) {
  ASSERT_EQ(submitted.answer->num_terminal, 1) << part;
  ASSERT_TRUE(submitted.answer->error) << part;
  EXPECT_EQ(submitted.answer->error->code, code) << submitted.answer->error->message;
  EXPECT_NE(submitted.answer->error->message.find(part), std::string::npos) << submitted.answer->error->message;
  EXPECT_EQ(submitted.answer->num_chunks_after_end, 0);
}

TEST(Requests, AnswerWhatTheModelSaysInAnyOrderOfEvents) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Simulation sim({.seed = seed, .num_device_workers = 2}, seed % 2 ? split_model() : one_model());
    const auto first = sim.submit(request("lm", "hello", 12, true));
    const auto second = sim.submit(request("lm", "what is it", 7));
    sim.run();
    expect_answer(first, expected_text("hello", 12, true));
    expect_answer(second, expected_text("what is it", 7, false));
    EXPECT_EQ(first.answer->finished->usage.prompt_tokens, 5);
    sim.expect_empty();
  }
}

TEST(Requests, TokenBudgetIsExactWithAndWithoutStopIds) {
  int num_stopped = 0, num_stopped_at_prefill = 0;
  Simulation sim({.seed = 3}, one_model());
  for (const std::int64_t budget : {1, 2, 4, 16})
    for (const bool ignore : {false, true})
      for (int text = 0; text < 40; ++text) {
        const std::string prompt = "text " + std::to_string(text);
        const auto submitted = sim.submit(request("lm", prompt, budget, ignore));
        sim.run();
        const auto tokens = toy::expected_tokens(prompt, budget, ignore);
        expect_answer(submitted, expected_text(prompt, budget, ignore));
        const Finished& finished = *submitted.answer->finished;
        EXPECT_EQ(finished.usage.completion_tokens, static_cast<std::int64_t>(tokens.size()));
        EXPECT_TRUE(!ignore || finished.usage.completion_tokens == budget);
        const bool stopped = !ignore && tokens.back() == toy::kStopId;
        EXPECT_EQ(finished.finish, stopped ? decl::Finish::stop : decl::Finish::length) << prompt << ", " << budget;
        num_stopped += stopped;
        num_stopped_at_prefill += stopped && tokens.size() == 1;
      }
  EXPECT_GT(num_stopped, 0);  // else the texts above test nothing
  EXPECT_GT(num_stopped_at_prefill, 0);
  sim.expect_empty();
}

TEST(Requests, ManyTogetherAnswerAsOneByOne) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Simulation sim({.seed = seed, .num_device_workers = 2, .max_concurrent_requests = 8}, split_model());
    std::vector<Simulation::Submitted> submitted;
    std::vector<std::string> expected;
    for (int i = 0; i < 12; ++i) {
      const std::string prompt(static_cast<std::size_t>(1 + i * 3), static_cast<char>('a' + i));
      const std::int64_t budget = 1 + (i * 5) % 14;
      submitted.push_back(sim.submit(request("lm", prompt, budget, i % 2 == 0)));
      expected.push_back(expected_text(prompt, budget, i % 2 == 0));
      for (std::uint64_t k = sim.random()() % 40; k > 0; --k) sim.step();  // so that rows are in different states
    }
    sim.run();
    for (std::size_t i = 0; i < submitted.size(); ++i) expect_answer(submitted[i], expected[i]);
    sim.expect_empty();
  }
}

TEST(Requests, RowsOfOneBatchAreInDifferentStates) {
  Simulation sim({.seed = 11, .max_concurrent_requests = 8}, one_model());
  std::vector<Simulation::Submitted> submitted;
  for (int i = 0; i < 8; ++i) {
    submitted.push_back(sim.submit(request("lm", std::string(static_cast<std::size_t>(i + 1), 'x'), 30, true)));
    for (int k = 0; k < 25; ++k) sim.step();
  }
  sim.run();
  const auto stats = sim.worker(1).stats();
  for (const auto& component : stats.components)
    if (component.name == "decoder") {
      EXPECT_LT(component.num_steps, component.num_rows);
    }
  for (int i = 0; i < 8; ++i)
    expect_answer(submitted[static_cast<std::size_t>(i)],
                  expected_text(std::string(static_cast<std::size_t>(i + 1), 'x'), 30, true));
}

TEST(Requests, TwoLabelsOfOneRequestShareABatch) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<ModelSpec> models;
    models.push_back({toy::two_branches("pair"), {}});
    Simulation sim({.seed = seed}, std::move(models));
    const auto good = sim.submit(request("pair", "abc"));
    const auto bad = sim.submit(failing_request("pair", "zz", "label_b"));
    const auto other = sim.submit(request("pair", "q"));
    sim.run();
    expect_answer(good, toy::expected_branches("abc"));
    expect_answer(other, toy::expected_branches("q"));
    expect_failure(bad, Code::internal, "label_b");
    sim.expect_empty();
  }
}

TEST(Requests, TwoModelsInOneDeployment) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<ModelSpec> models;
    models.push_back({toy::language_model("seven", 7), {}});
    models.push_back({toy::language_model("nine", 9), {{"decoder", {1}}}});
    Simulation sim({.seed = seed, .num_device_workers = 2}, std::move(models));
    const auto a = sim.submit(request("seven", "same", 9, true));
    const auto b = sim.submit(request("nine", "same", 9, true));
    sim.run();
    expect_answer(a, expected_text("same", 9, true, 7));
    expect_answer(b, expected_text("same", 9, true, 9));
    EXPECT_NE(a.answer->text, b.answer->text);
    sim.expect_empty();
  }
}

// A failure in any place ends its own request, with the others' rows in the same batches.
TEST(Failures, StayWithTheirRequest) {
  const std::vector<std::pair<std::string, std::int64_t>> places = {
      {"tokenise", 0}, {"tokenise_throw", 0}, {"wrong_outputs", 0}, {"bad_value", 0}, {"declare", 0},    {"declare", 5},
      {"fail_row", 0}, {"fail_row", 6},       {"detokenise", 0},    {"plan", 0},      {"plan_throw", 0}, {"emit", 0}};
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const auto& [place, at] : places) {
      Simulation sim({.seed = seed, .num_device_workers = 2}, seed % 2 ? split_model() : one_model());
      const auto before = sim.submit(request("lm", "before", 16, true));
      const auto bad = sim.submit(failing_request("lm", "bad", place, at));
      const auto after = sim.submit(request("lm", "after", 16, true));
      sim.run();
      expect_answer(before, expected_text("before", 16, true));
      expect_answer(after, expected_text("after", 16, true));
      expect_failure(bad, Code::internal, "");
      sim.expect_empty();
    }
}

TEST(Failures, OfIntakeAreTheAnswerToSubmit) {
  Simulation sim({}, one_model());
  const auto refused = sim.try_submit(failing_request("lm", "x", "intake"), std::make_shared<Answer>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid_request);
  EXPECT_EQ(refused.error().field, "fail");
  const auto thrown = sim.try_submit(failing_request("lm", "x", "intake_throw"), std::make_shared<Answer>());
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().code, Code::internal);
  sim.run();
  sim.expect_empty();
}

TEST(Failures, OfPreprocessingKeepTheirCodeAndField) {
  Simulation sim({}, one_model());
  const auto empty = sim.submit(request("lm", ""));
  sim.run();
  expect_failure(empty, Code::invalid_request, "empty");
  EXPECT_EQ(empty.answer->error->field, "text");
  sim.expect_empty();
}

TEST(Failures, OfAdmissionEndOneRow) {
  Simulation sim({}, one_model());
  const auto longer = sim.submit(request("lm", std::string(toy::kMaxContext + 1, 'y'), 4));
  const auto longest = sim.submit(request("lm", std::string(400, 'y'), 4));  // more than a step's tokens
  const auto fits = sim.submit(request("lm", "fits", 4, true));
  sim.run();
  expect_failure(longer, Code::invalid_request, "context");
  expect_failure(longest, Code::invalid_request, "longer than a step");
  expect_answer(fits, expected_text("fits", 4, true));
  sim.expect_empty();
}

TEST(Failures, OfAWholeStepEndTheRequestsOfItsBatchOnly) {
  for (const std::string place : {"forward", "forward_throw", "declare_throw"})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<ModelSpec> models;
      models.push_back({toy::language_model("lm"), {}});
      models.push_back({toy::language_model("other"), {}});
      Simulation sim({.seed = seed}, std::move(models));
      const auto with = sim.submit(request("lm", "with", 16, true));
      const auto bad = sim.submit(failing_request("lm", "bad", place, 3));
      const auto aside = sim.submit(request("other", "aside", 16, true));
      sim.run();
      ASSERT_EQ(bad.answer->num_terminal, 1);
      expect_failure(bad, Code::internal, place == "forward" ? "told to fail" : "told to throw");
      expect_answer(aside, expected_text("aside", 16, true));
      ASSERT_EQ(with.answer->num_terminal, 1);
      if (with.answer->error) {
        EXPECT_EQ(with.answer->error->message, bad.answer->error->message);
      } else {
        expect_answer(with, expected_text("with", 16, true));
      }
      const auto later = sim.submit(request("lm", "later", 16, true));
      sim.run();
      expect_answer(later, expected_text("later", 16, true));
      sim.expect_empty();
    }
}

// An abort after any number of events: queued, on the host pool, in a sliced step, between walks, in the decode loop,
// ended.
TEST(Aborts, LeaveNothingBehindInAnyState) {
  int num_cancelled = 0, num_finished = 0;
  for (int steps = 0; steps < 160; ++steps) {
    Simulation sim({.seed = static_cast<std::uint64_t>(steps), .num_device_workers = 2, .max_concurrent_requests = 2},
                   split_model());
    const auto other = sim.submit(request("lm", "other", 5, true));
    const auto aborted = sim.submit(request("lm", "aborted", 5, true));
    const auto queued = sim.submit(request("lm", "queued", 5, true));
    for (int i = 0; i < steps * default_in_step(); ++i) sim.step();  // with more ranks there is more to do
    sim.conductor().abort(aborted.id);
    sim.conductor().abort(queued.id);
    sim.conductor().abort(queued.id);  // twice is harmless
    sim.run();
    for (const auto& each : {aborted, queued}) {
      ASSERT_EQ(each.answer->num_terminal, 1);
      EXPECT_EQ(each.answer->num_chunks_after_end, 0);
      EXPECT_TRUE(!each.answer->error || each.answer->error->code == Code::cancelled);
      num_cancelled += each.answer->error.has_value();
      num_finished += each.answer->finished.has_value();
    }
    expect_answer(other, expected_text("other", 5, true));
    sim.expect_empty();
  }
  EXPECT_GT(num_cancelled, 50);
  EXPECT_GT(num_finished, 5);
}

TEST(Aborts, WhileTheHostPoolRunsTheStage) {
  Simulation sim({.seed = 5}, one_model());
  const auto aborted = sim.submit(request("lm", "aborted", 5, true));
  ASSERT_TRUE(sim.run_until([&] { return sim.num_host_jobs() == 1; }));
  sim.conductor().abort(aborted.id);
  sim.conductor().poll();
  expect_failure(aborted, Code::cancelled,
                 "aborted");  // the client is told at once; the state goes when the job is done
  sim.run();
  sim.expect_empty();
}

TEST(Admission, CapsWhatRunsAndKeepsTheOrder) {
  Simulation sim({.seed = 2, .max_concurrent_requests = 1, .max_queued_requests = 3}, one_model());
  std::vector<Simulation::Submitted> submitted;
  for (int i = 0; i < 4; ++i) submitted.push_back(sim.submit(request("lm", "r" + std::to_string(i), 3, true)));
  const auto refused = sim.try_submit(request("lm", "more"), std::make_shared<Answer>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::exhausted);
  EXPECT_NE(refused.error().message.find("queue is full"), std::string::npos);
  for (std::size_t i = 0; i < submitted.size(); ++i) {
    ASSERT_TRUE(sim.run_until([&] { return submitted[i].answer->num_terminal == 1; }));
    for (std::size_t later = i + 1; later < submitted.size(); ++later)
      EXPECT_TRUE(submitted[later].answer->pieces.empty());
  }
  sim.run();
  for (std::size_t i = 0; i < submitted.size(); ++i)
    expect_answer(submitted[i], expected_text("r" + std::to_string(i), 3, true));
  sim.expect_empty();
  const auto room = sim.submit(request("lm", "room", 3, true));  // places in the queue come back
  sim.run();
  expect_answer(room, expected_text("room", 3, true));
}

TEST(Placement, GroupsOfReplicasBalanceByThemselves) {
  std::vector<ModelSpec> models;
  models.push_back({toy::language_model("lm"), {{"encoder", {0, 1}}, {"decoder", {1, 2}}}});
  Simulation sim({.seed = 4, .num_device_workers = 3}, std::move(models));
  std::vector<Simulation::Submitted> submitted;
  for (int i = 0; i < 8; ++i) submitted.push_back(sim.submit(request("lm", "p" + std::to_string(i), 6, true)));
  sim.conductor().poll();
  std::map<std::size_t, std::vector<int>> by_group;
  for (const auto& [key, count] : sim.conductor().load()) by_group[std::get<1>(key)].push_back(count);
  ASSERT_EQ(by_group.size(), 3u);  // host, encoders, decoders
  int num_pairs = 0;
  for (const auto& [group, counts] : by_group) {
    if (counts.size() == 1) continue;
    EXPECT_EQ(counts, (std::vector<int>{4, 4}));
    ++num_pairs;
  }
  EXPECT_EQ(num_pairs, 2);
  sim.run();
  for (int i = 0; i < 8; ++i)
    expect_answer(submitted[static_cast<std::size_t>(i)], expected_text("p" + std::to_string(i), 6, true));
  sim.expect_empty();
}

TEST(Workers, KilledOnesTakeOnlyTheirRequestsAlongAndComeBack) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::vector<ModelSpec> models;
    models.push_back({toy::language_model("lm"), {{"encoder", {0}}, {"decoder", {0}}}});
    models.push_back({toy::language_model("other"), {{"encoder", {1}}, {"decoder", {1}}}});
    Simulation sim({.seed = seed, .num_device_workers = 2}, std::move(models));
    const auto lost = sim.submit(request("lm", "lost", 30, true));
    const auto other = sim.submit(request("other", "other", 30, true));
    ASSERT_TRUE(sim.run_until([&] { return lost.answer->pieces.size() > 2; }));
    sim.kill_worker(WorkerId(1));
    sim.run();
    if (lost.answer->error) expect_failure(lost, Code::unavailable, "killed by signal 9");
    expect_answer(other, expected_text("other", 30, true));
    EXPECT_FALSE(sim.conductor().state().ready);
    const auto refused = sim.try_submit(request("lm", "refused"), std::make_shared<Answer>());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::unavailable);
    sim.restart_worker(WorkerId(1));
    sim.run();
    EXPECT_TRUE(sim.conductor().state().ready);
    const auto again = sim.submit(request("lm", "again", 30, true));
    sim.run();
    expect_answer(again, expected_text("again", 30, true));
    sim.expect_empty();
  }
}

TEST(Workers, AReplicaTakesOverWhenAnotherIsKilled) {
  std::vector<ModelSpec> models;
  models.push_back({toy::language_model("lm"), {{"encoder", {0, 1}}, {"decoder", {0, 1}}}});
  Simulation sim({.seed = 9, .num_device_workers = 2}, std::move(models));
  sim.kill_worker(WorkerId(2));
  sim.run();
  EXPECT_TRUE(sim.conductor().state().ready);
  for (int i = 0; i < 6; ++i) {
    const auto each = sim.submit(request("lm", "still " + std::to_string(i), 6, true));
    sim.run();
    expect_answer(each, expected_text("still " + std::to_string(i), 6, true));
  }
  sim.expect_empty();
}

// Many requests of all kinds with aborts, failures and killed workers in random order.
TEST(Flood, EveryRequestEndsOnceAndNothingStays) {
  const std::vector<std::string> places = {"tokenise", "wrong_outputs", "bad_value",     "declare",
                                           "fail_row", "forward",       "forward_throw", "detokenise",
                                           "plan",     "plan_throw",    "emit"};
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    std::vector<ModelSpec> models;
    models.push_back({toy::language_model("lm"), {{"encoder", {0, 1}}, {"decoder", {1, 2}}}});
    models.push_back({toy::two_branches("pair"), {{"scale", {0, 2}}}});
    Simulation sim({.seed = seed, .num_device_workers = 3, .max_concurrent_requests = 6, .max_queued_requests = 1000},
                   std::move(models));
    struct Sent {
      Simulation::Submitted submitted;
      std::string expected;
      bool fails = false;
    };
    std::vector<Sent> sent;
    std::set<std::uint32_t> dead;
    auto& random = sim.random();
    while (sent.size() < 150) {
      for (std::uint64_t k = random() % 60; k > 0; --k) sim.step();
      const std::string text = "t" + std::to_string(random() % 1000);
      const std::uint64_t kind = random() % 20;
      decl::ApiRequest made;
      Sent each;
      if (kind < 5) {
        made = request("pair", text);
        each.expected = toy::expected_branches(text);
      } else if (kind < 9) {
        made = failing_request("lm", text, places[random() % places.size()], static_cast<std::int64_t>(random() % 4));
        each.fails = true;
      } else {
        const auto budget = static_cast<std::int64_t>(1 + random() % 12);
        made = request("lm", text, budget, kind % 2 == 0);
        each.expected = expected_text(text, budget, kind % 2 == 0);
      }
      auto answer = std::make_shared<Answer>();
      const auto id = sim.try_submit(std::move(made), answer);
      if (!id) {
        ASSERT_EQ(id.error().code, Code::unavailable);
        ASSERT_FALSE(dead.empty());
      } else {
        each.submitted = {*id, answer};
        sent.push_back(each);
      }
      if (random() % 6 == 0) sim.conductor().abort(sent[random() % sent.size()].submitted.id);
      if (random() % 25 == 0 && dead.empty()) {
        const auto worker = static_cast<std::uint32_t>(1 + random() % 3);
        sim.kill_worker(WorkerId(worker));
        dead.insert(worker);
      } else if (random() % 8 == 0 && !dead.empty()) {
        sim.restart_worker(WorkerId(*dead.begin()));
        dead.clear();
      }
    }
    sim.run();
    int num_answered = 0;
    for (const Sent& each : sent) {
      const Answer& answer = *each.submitted.answer;
      ASSERT_EQ(answer.num_terminal, 1) << "seed " << seed;
      EXPECT_EQ(answer.num_chunks_after_end, 0);
      if (!answer.finished || each.fails) continue;  // failing ones may end before their place is reached
      EXPECT_EQ(answer.text, each.expected) << "seed " << seed;
      ++num_answered;
    }
    EXPECT_GT(num_answered, 40) << "seed " << seed;
    sim.expect_empty();
  }
}

}  // namespace
}  // namespace mstar::sim
