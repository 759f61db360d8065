#include "profile_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "settings.h"

namespace mstar::apps {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::int64_t now = 0;
std::int64_t manual_now() { return now; }

void spend(StepProfile& profile, Phase phase, std::int64_t ns) {
  const PhaseScope scope(&profile, phase);
  now += ns;
}

// Twenty captured steps of 30 rows, the i-th with i us of schedule before and i/2 of route behind a busy device.
std::unique_ptr<StepProfile> profile_of_twenty_steps(const std::string& model = "m") {
  auto out = std::make_unique<StepProfile>(StepProfile::Options{.num_spans = 1000, .now_ns = manual_now});
  out->add_component(model, "decoder");
  for (int i = 1; i <= 20; ++i) {
    spend(*out, Phase::schedule, i * 1000);
    out->look(false);
    const std::int64_t launched = now;
    spend(*out, Phase::wait, 100'000);
    out->add_flight(launched, 0, StepKind::replay, 30);
    spend(*out, Phase::route, i * 500);
    out->end_step(0, StepKind::replay, 30, true);
  }
  return out;
}

TEST(Spread, IsOfWhatOccurred) {
  EXPECT_EQ(spread_of({}).p95, 0);
  EXPECT_EQ(spread_of({7}).p50, 7);
  std::vector<std::int64_t> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.mean, 50.5);
  EXPECT_EQ(spread.p50, 50);
  EXPECT_EQ(spread.p95, 95);
}

TEST(ProfileReport, TheTableNamesEachPhaseAndTheSums) {
  const auto profile = profile_of_twenty_steps();
  const std::string table = profile_table({profile.get()});
  EXPECT_THAT(table, HasSubstr("m/decoder: replay, 17-32 rows (30.0), 20 steps"));
  EXPECT_THAT(table, HasSubstr("  schedule          20       10.5       10.0       19.0       10.5\n"));
  EXPECT_THAT(table, HasSubstr("  wait              20      100.0      100.0      100.0        0.0\n"));
  EXPECT_THAT(table, HasSubstr("  route             20        5.2        5.0        9.5        0.0\n"));
  EXPECT_THAT(table, HasSubstr("  = step                    115.8      115.0      128.5 "));
  EXPECT_THAT(table, HasSubstr("  = exposed                  10.5       10.0       19.0 "));
  EXPECT_THAT(table, Not(HasSubstr("admit")));
  EXPECT_EQ(profile_table({}), "");
}

TEST(ProfileReport, TheJsonSaysTheSame) {
  const auto profile = profile_of_twenty_steps("a\"b\xff");
  const json parsed = json::parse(profile_json({profile.get()}));
  const json& steps = parsed.at("workers").at(0).at("steps");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0]["model"], "a\"b\xEF\xBF\xBD");
  EXPECT_EQ(steps[0]["rows"], "17-32");
  EXPECT_EQ(steps[0]["num_steps"], 20);
  EXPECT_EQ(steps[0]["exposed_us"], (json{{"mean", 10.5}, {"p50", 10.0}, {"p95", 19.0}}));
  EXPECT_EQ(steps[0]["wait_us"]["p95"], 100.0);
  EXPECT_EQ(steps[0]["phases"]["schedule"]["count"], 20);
  EXPECT_EQ(steps[0]["phases"]["route"]["exposed_mean_us"], 0.0);
}

TEST(ProfileReport, TheTimelineIsValidAndInOrder) {
  const auto profile = profile_of_twenty_steps("a\"b");
  const json parsed = json::parse(profile_trace({profile.get()}));
  double phases_end = 0;
  int num_begun = 0, num_ended = 0;
  for (const json& event : parsed.at("traceEvents")) {
    if (event["ph"] == "X") {
      EXPECT_GE(event["ts"].get<double>(), phases_end);
      phases_end = event["ts"].get<double>() + event["dur"].get<double>();
    }
    num_begun += event["ph"] == "b";
    num_ended += event["ph"] == "e";
    const bool is_flight = event["ph"] == "b" || event["ph"] == "e";
    EXPECT_EQ(event["name"] == "a\"b/decoder: replay of 30 rows", is_flight);
  }
  EXPECT_EQ(num_begun, 20);
  EXPECT_EQ(num_ended, 20);
  EXPECT_DOUBLE_EQ(phases_end, 210 + 2000 + 105);
}

TEST(ProfileFlag, IsReadOrRefused) {
  const auto read = [](std::vector<std::string> profile) {
    ModelFlags flags;
    flags.model = "null";
    flags.profile = std::move(profile);
    return model_settings(flags);
  };
  EXPECT_FALSE(read({})->runtime.profile.is_on());
  EXPECT_TRUE(read({"phases"})->runtime.profile.phases);
  for (const char* wrong : {"phase", "trace", "trace=", ""}) {
    const auto refused = read({wrong});
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, Code::invalid_request);
    EXPECT_THAT(refused.error().message, HasSubstr("--profile must be phases or trace=FILE"));
  }
  const auto nowhere = read({"trace=/nowhere/at/all.json"});
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("'/nowhere/at/all.json' cannot be written"));
}

}  // namespace
}  // namespace mstar::apps
