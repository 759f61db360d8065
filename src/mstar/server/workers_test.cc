// The routes that take ranks out of service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class WorkersTest : public ServerFixture {
 protected:
  TestAnswer order(const std::string& rest) { return ask(port, post("/debug/workers/" + rest, "text/plain", "")); }
};

TEST_F(WorkersTest, AreListedWithWhatTheyRun) {
  start();
  const TestAnswer answer = ask(port, get("/debug/workers"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body), json::parse(R"({"workers":[
      {"rank":0,"state":"running","live_requests":3,"models":[{"model":"lab/fake-llm","components":["a","b"]}]},
      {"rank":1,"state":"failed","live_requests":0,"models":[],"reason":"it \"died\""}]})"));
}

TEST_F(WorkersTest, OrdersAreGivenAndAnswered) {
  start();
  for (const auto& [name, state] : {std::pair("drain", "drained"), {"remove", "removed"}, {"resume", "running"}}) {
    const TestAnswer answer = order("0/" + std::string(name));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(json::parse(answer.body)["state"], state);
    EXPECT_EQ(json::parse(ask(port, get("/debug/workers")).body)["workers"][0]["state"], state);
  }
}

TEST_F(WorkersTest, BadRanksAndOrdersAreToldApart) {
  start();
  for (const char* const rest : {"2/drain", "-1/drain"}) {
    const TestAnswer answer = order(rest);
    EXPECT_EQ(answer.status, 404) << rest;
    EXPECT_EQ(json::parse(answer.body)["error"]["param"], "rank");
    EXPECT_THAT(answer.body, HasSubstr("there is no rank"));
  }
  for (const char* const rest : {"one/drain", "/drain", "0x/drain", "99999999999/resume"}) {
    const TestAnswer answer = order(rest);
    EXPECT_EQ(answer.status, 400) << rest;
    EXPECT_EQ(json::parse(answer.body)["error"]["code"], "bad_rank");
  }
  for (const char* const rest : {"0", "0/", "0/kill", "0/drain/now"}) EXPECT_EQ(order(rest).status, 404) << rest;
  EXPECT_EQ(ask(port, get("/debug/workers/0/drain")).status, 405);
  EXPECT_EQ(json::parse(ask(port, get("/debug/workers")).body)["workers"][0]["state"], "running");
}

}  // namespace
}  // namespace mstar::server
