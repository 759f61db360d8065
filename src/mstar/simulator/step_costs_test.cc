#include "mstar/models/toy/step_costs.h"

#include <gmock/gmock.h>

#include <fstream>

namespace mstar::models {
namespace {

TEST(Curve, GoesThroughItsPointsAndOn) {
  const auto curve = Curve::through({{1, 10}, {3, 20}, {4, 40}});
  ASSERT_TRUE(curve);
  EXPECT_DOUBLE_EQ(curve->at(0), 10);
  EXPECT_DOUBLE_EQ(curve->at(1), 10);
  EXPECT_DOUBLE_EQ(curve->at(2), 15);
  EXPECT_DOUBLE_EQ(curve->at(3.5), 30);
  EXPECT_DOUBLE_EQ(curve->at(6), 80);
  EXPECT_DOUBLE_EQ(Curve().at(5), 0);
  EXPECT_DOUBLE_EQ(Curve::through({{1, 5}})->at(9), 5);
  EXPECT_DOUBLE_EQ(Curve::through({{1, 5}, {2, 1}})->at(9), 0);  // never below
}

TEST(Curve, RefusesPointsOutOfOrder) {
  EXPECT_FALSE(Curve::through({{2, 1}, {2, 2}}));
  EXPECT_FALSE(Curve::through({{-1, 1}}));
  EXPECT_FALSE(Curve::through({{1, -1}}));
}

class StepCostsTest : public ::testing::Test {
 protected:
  Result<StepCosts> read(const std::string& text) {
    const std::string name = testing::TempDir() + "/costs.json";
    std::ofstream(name) << text;
    return read_step_costs(name);
  }
  void refuses(const std::string& text, const std::string& why) {
    const auto costs = read(text);
    ASSERT_FALSE(costs) << text;
    EXPECT_EQ(costs.error().code, Code::bad_model);
    EXPECT_THAT(costs.error().message, testing::HasSubstr(why));
  }
};

TEST_F(StepCostsTest, AddsWhatAStepIsMadeOf) {
  const auto costs = read(R"({"source": "a test", "rows": [[1, 100], [3, 300]], "prompt_tokens": [[0, 0], [10, 50]],
                              "us_per_context_token": 0.5, "asynchronous": true, "step_tokens": 64, "message_us": 7})");
  ASSERT_TRUE(costs) << costs.error().message;
  EXPECT_DOUBLE_EQ(costs->step_us({.num_rows = 2, .num_prompt_tokens = 4, .context_tokens = 100}), 200 + 20 + 50);
  EXPECT_DOUBLE_EQ(costs->step_us({.num_rows = 1}), 100);
  EXPECT_TRUE(costs->asynchronous);
  EXPECT_EQ(costs->step_tokens, 64);
  EXPECT_DOUBLE_EQ(costs->message_us, 7);
}

TEST_F(StepCostsTest, SaysWhatIsWrong) {
  refuses("[]", "object");
  refuses("{}", "'rows'");
  refuses(R"({"rows": 3})", "'rows' must be a list");
  refuses(R"({"rows": [[1]]})", "must be a list of [x, microseconds]");
  refuses(R"({"rows": [[1, "a"]]})", "must be a list of [x, microseconds]");
  refuses(R"({"rows": [[1, -4]]})", "from 0 to 1e9");
  refuses(R"({"rows": [[2, 4], [1, 4]]})", "growing order");
  refuses(R"({"rows": [[1, 4]], "message_us": -1})", "'message_us'");
  refuses(R"({"rows": [[1, 4]], "step_tokens": 0})", "'step_tokens'");
  refuses(R"({"rows": [[1, 4]], "asynchronous": 1})", "'asynchronous'");
  refuses(R"({"rows": [[1, 4]], "colour": 1})", "'colour' is unknown");
}

}  // namespace
}  // namespace mstar::models
