// Every fixture under many event orders and placements. MSTAR_GRAPH_SEEDS sets the number of seeds per fixture and
// placement.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "mstar/graph/fixtures/fixtures.h"
#include "mstar/graph/sim/random_model.h"
#include "mstar/graph/sim/simulator.h"

namespace mstar::graph {
namespace {

std::uint64_t num_seeds(std::uint64_t fallback) {
  const char* text = std::getenv("MSTAR_GRAPH_SEEDS");
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

decl::RequestParams random_params(const fixtures::Fixture& fixture, std::mt19937_64& rng) {
  decl::RequestParams params;
  params.sampling.max_tokens = std::uniform_int_distribution<>(1, 40)(rng);
  for (const fixtures::Choice& each : fixture.choices)
    params.fields.set(each.field, std::int64_t{std::uniform_int_distribution<>(each.lowest, each.highest)(rng)});
  return params;
}

class EventOrders : public testing::TestWithParam<std::size_t> {
 protected:
  // Runs all seeds; `tune` changes the options of each.
  template <class Tune>
  sim::Outcome drive(std::uint64_t seeds, Tune&& tune) {
    const fixtures::Fixture& fixture = fixtures::all_fixtures()[GetParam()];
    const decl::Decl model = fixture.make();
    auto compiled = CompiledModel::compile(model);
    EXPECT_TRUE(compiled) << (compiled ? "" : compiled.error().message);
    sim::Outcome total;
    if (!compiled) return total;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      for (int workers = 1; workers <= 4; ++workers) {
        std::mt19937_64 rng(seed * 8 + static_cast<std::uint64_t>(workers));
        const decl::RequestParams params = random_params(fixture, rng);
        sim::Options options;
        options.seed = rng();
        options.num_workers = workers;
        options.stop = std::uniform_real_distribution<>(0, 0.3)(rng);
        tune(options, rng);
        const auto placed = sim::random_placement(*compiled, rng(), workers, seed % 2 == 1);
        const sim::Outcome out = sim::run(*placed, placed, params, options);
        const std::string where =
            fixture.name + " seed " + std::to_string(seed) + " workers " + std::to_string(workers);
        EXPECT_TRUE(out.faults.empty()) << where << ": " << (out.faults.empty() ? "" : out.faults.front());
        EXPECT_EQ(out.live_values, 0) << where;
        total.steps += out.steps;
        total.ahead_kept += out.ahead_kept;
        total.ahead_dropped += out.ahead_dropped;
        total.refused += out.refused;
        if (HasFailure()) return total;
      }
    }
    return total;
  }
};

TEST_P(EventOrders, EveryInputIsWhatTheDeclarationSays) {
  const sim::Outcome total = drive(num_seeds(250), [](sim::Options&, std::mt19937_64&) {});
  EXPECT_GT(total.steps, 0);
  RecordProperty("steps", std::to_string(total.steps));
  RecordProperty("ahead_kept", std::to_string(total.ahead_kept));
  RecordProperty("ahead_dropped", std::to_string(total.ahead_dropped));
  RecordProperty("refused", std::to_string(total.refused));
}

TEST_P(EventOrders, AbortsAndCutsLeaveNothingBehind) {
  drive(num_seeds(100), [](sim::Options& options, std::mt19937_64& rng) {
    options.abort = rng() % 2 ? 0.01 : 0;
    options.cancel = rng() % 2 ? 0.01 : 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EventOrders, testing::Range<std::size_t>(0, fixtures::all_fixtures().size()),
                         [](const auto& param) { return fixtures::all_fixtures()[param.param].name; });

// A token budget is kept to the token when nothing stops earlier.
TEST(TokenBudget, ExactlyAsManyTokensAsAsked) {
  for (const fixtures::Fixture& fixture : fixtures::all_fixtures()) {
    if (fixture.name != "qwen35" && fixture.name != "orpheus" && fixture.name != "qwen3_tts" &&
        fixture.name != "qwen3_omni")
      continue;
    const decl::Decl model = fixture.make();
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled);
    for (const int max_tokens : {1, 2, 4, 16}) {
      std::mt19937_64 rng(7);
      decl::RequestParams params = random_params(fixture, rng);
      params.sampling.max_tokens = max_tokens;
      sim::Options options;
      options.num_workers = 2;
      options.stop = 0;
      const auto placed = sim::random_placement(*compiled, 3, 2, false);
      const sim::Outcome out = sim::run(*placed, placed, params, options);
      EXPECT_TRUE(out.faults.empty()) << out.faults.front();
      EXPECT_EQ(out.num_tokens, max_tokens) << fixture.name;
    }
  }
}

// A stop must outrun the values that follow from it, over workers that hear of it from others.
TEST(EventOrdersOfARing, AStopReachesEveryWorkerInTime) {
  decl::Decl model("ring");
  std::vector<decl::PortRef> ports;
  for (int i = 0; i < 4; ++i) {
    std::vector<decl::Travel> travel = {decl::ToClient{}};
    if (i == 0) travel.push_back(decl::FromPlan{});
    ports.push_back(model.port({.name = "p" + std::to_string(i), .travel = travel}));
  }
  std::vector<decl::Section> body;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto component = model.component(decl::DeviceComponent{.name = "c" + std::to_string(i)});
    body.push_back(decl::Run{component, {ports[i]}, {ports[(i + 1) % 4]}});
  }
  const auto first = ports[0];
  const auto walk =
      model.walk("w", decl::Loop{.name = "ring", .body = body, .stop = decl::ComponentSignal{}, .at_most = 50});
  model.partition({.name = "default", .walks = {walk}, .plan = fixtures::schedule([=](const decl::RequestParams&) {
                                                         return std::vector<decl::NextWalk>(
                                                             5, {.walk = walk, .inputs = {fixtures::give(first)}});
                                                       })});
  const auto compiled = CompiledModel::compile(model);
  ASSERT_TRUE(compiled) << compiled.error().message;
  RequestPlacement placement(*compiled, WorkerId(0));
  for (std::uint16_t c = 0; c < 4; ++c) placement.set(decl::ComponentRef(c), WorkerId(c));
  const auto placed = PlacedModel::place(*compiled, placement);
  ASSERT_TRUE(placed) << placed.error().message;
  std::int64_t stopped = 0;
  for (std::uint64_t seed = 0; seed < num_seeds(40) * 20; ++seed) {
    sim::Options options;
    options.seed = seed;
    options.num_workers = 4;
    options.stop = 0.1;
    const sim::Outcome out = sim::run(**placed, *placed, {}, options);
    ASSERT_TRUE(out.faults.empty()) << "seed " << seed << ": " << out.faults.front();
    stopped += out.stopped_loops;
  }
  EXPECT_GT(stopped, 0);
}

TEST(RandomModels, EveryInputIsWhatTheDeclarationSays) {
  std::int64_t steps = 0;
  std::int64_t ahead = 0;
  std::int64_t split = 0;
  const std::uint64_t seeds = num_seeds(40) * 40;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const decl::Decl model = sim::random_model(seed);
    const auto compiled = CompiledModel::compile(model);
    ASSERT_TRUE(compiled) << compiled.error().message;
    for (int workers = 1; workers <= 3; ++workers) {
      std::mt19937_64 rng(seed * 4 + static_cast<std::uint64_t>(workers));
      sim::Options options;
      options.seed = rng();
      options.num_workers = workers;
      options.stop = std::uniform_real_distribution<>(0, 0.3)(rng);
      options.abort = seed % 7 == 0 ? 0.005 : 0;
      options.cancel = seed % 7 == 1 ? 0.005 : 0;
      const auto placed = sim::random_placement(*compiled, rng(), workers, false);
      for (const CompiledWalk& walk : compiled->walks()) split += placed->fragments(walk.ref).size() > 1;
      const sim::Outcome out = sim::run(*placed, placed, {}, options);
      ASSERT_TRUE(out.faults.empty()) << "seed " << seed << " workers " << workers << ": " << out.faults.front();
      ASSERT_EQ(out.live_values, 0) << "seed " << seed << " workers " << workers;
      steps += out.steps;
      ahead += out.ahead_kept;
    }
  }
  EXPECT_GT(ahead, 0);
  EXPECT_GT(split, 0);
  RecordProperty("steps", std::to_string(steps));
  RecordProperty("ahead", std::to_string(ahead));
  RecordProperty("split", std::to_string(split));
}

}  // namespace
}  // namespace mstar::graph
