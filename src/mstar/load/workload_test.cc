#include "mstar/load/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "mstar/load/http_url.h"

namespace mstar::load {
namespace {

TEST(Range, Texts) {
  const auto range = parse_range("16-512", 1000);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->least, 16);
  EXPECT_EQ(range->most, 512);
  EXPECT_EQ(parse_range("128", 1000)->most, 128);
  for (const char* text : {"", "-", "a", "1-", "-1", "5-4", "1-2-3", "1 - 2", "0x10", "1001", "1-1001", "99999999999"})
    EXPECT_FALSE(parse_range(text, 1000)) << text;
}

TEST(Workload, IsTheSameEveryTimeAndFromAnyPlace) {
  const Workload workload{.model = "m", .input_tokens = {16, 512}, .output_tokens = {16, 512}, .seed = 7};
  const PlannedRequest third = plan_request(workload, 3);
  plan_request(workload, 9);
  EXPECT_EQ(plan_request(workload, 3).body, third.body);
  Workload other = workload;
  other.seed = 8;
  EXPECT_NE(plan_request(other, 3).body, third.body);
  EXPECT_NE(plan_request(workload, 4).body, third.body);
}

TEST(Workload, LengthsFillTheirRangeAndIdsStayInTheirs) {
  const Workload workload{.model = "m", .input_tokens = {3, 6}, .output_tokens = {16, 512}, .token_ids = {40, 49}};
  std::set<int> inputs, ids;
  double sum = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const PlannedRequest planned = plan_request(workload, i);
    const auto body = nlohmann::json::parse(planned.body);
    EXPECT_EQ(static_cast<int>(body["prompt"].size()), planned.input_tokens);
    EXPECT_EQ(body["max_tokens"], planned.output_tokens);
    inputs.insert(planned.input_tokens);
    for (const int id : body["prompt"]) ids.insert(id);
    sum += planned.output_tokens;
  }
  EXPECT_EQ(inputs, (std::set<int>{3, 4, 5, 6}));
  EXPECT_EQ(*ids.begin(), 40);
  EXPECT_EQ(*ids.rbegin(), 49);
  EXPECT_EQ(ids.size(), 10u);
  EXPECT_NEAR(sum / 500, 264, 20);  // three standard errors of a uniform draw
}

TEST(Workload, BodiesAreWhatTheRoutesWant) {
  Workload workload{.model = "a\"b", .input_tokens = {2, 2}, .output_tokens = {5, 5}, .ignore_eos = true};
  const PlannedRequest completion = plan_request(workload, 0);
  auto body = nlohmann::json::parse(completion.body);
  EXPECT_EQ(completion.path, "/v1/completions");
  EXPECT_EQ(body["model"], "a\"b");
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["temperature"], 0.0);
  EXPECT_FALSE(body.contains("seed"));
  workload.route = CompletionRoute::chat;
  workload.ignore_eos = false;
  workload.temperature = 0.5;
  const PlannedRequest chat = plan_request(workload, 0);
  body = nlohmann::json::parse(chat.body);
  EXPECT_EQ(chat.path, "/v1/chat/completions");
  EXPECT_EQ(body["messages"][0]["role"], "user");
  const std::string words = body["messages"][0]["content"];
  EXPECT_EQ(std::count(words.begin(), words.end(), ' '), 1);
  EXPECT_FALSE(body.contains("ignore_eos"));
  EXPECT_TRUE(body.contains("seed"));
}

TEST(Arrivals, HaveTheMeanAndSpreadOfAPoissonStream) {
  const std::vector<double> at = poisson_arrivals(1, 20, 4000);
  EXPECT_EQ(at, poisson_arrivals(1, 20, 4000));
  EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
  EXPECT_GT(at.front(), 0);
  const double mean = at.back() / 4000;
  EXPECT_NEAR(mean, 0.05, 0.05 * 4 / std::sqrt(4000.0));
  double squares = 0;
  for (std::size_t i = 1; i < at.size(); ++i) squares += std::pow(at[i] - at[i - 1] - mean, 2);
  EXPECT_NEAR(std::sqrt(squares / 4000), 0.05, 0.05 * 0.1);  // as large as the mean: exponential gaps
}

TEST(HttpUrl, Texts) {
  EXPECT_EQ(parse_http_url("http://localhost:8000")->text(), "http://localhost:8000");
  EXPECT_EQ(parse_http_url("127.0.0.1:8000/")->text(), "http://127.0.0.1:8000");
  EXPECT_EQ(parse_http_url("http://h/v1/")->text(), "http://h");
  EXPECT_EQ(parse_http_url("http://h/proxy/v1")->base_path, "/proxy");
  const auto six = parse_http_url("http://[::1]:81/v1");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->authority(), "[::1]:81");
  for (const char* text : {"", "http://", "https://h", "ftp://h", "h:0", "h:70000", "h:x", "http://h:8000x", "[::1",
                           "[::1]x", "http://u@h", "http://h/a b", "http://h\r\nX: y", "http://h/?a"})
    EXPECT_FALSE(parse_http_url(text)) << text;
}

}  // namespace
}  // namespace mstar::load
