// The model that computes nothing, through the runtime and over HTTP.
#include <gtest/gtest.h>

#include "mstar/models/toy/null_model.h"
#include "toy_server.h"

namespace mstar::toys {
namespace {

using nlohmann::json;

std::vector<std::int32_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST(NullModel, AnswersAsManyTokensAsWereAskedFor) {
  const ToyServer server("null");
  for (const int num_tokens : {1, 2, 7, 200}) {
    const Answer answer = server.ask({{"text", "abc"}, {"max_tokens", num_tokens}, {"seed", 5}});
    ASSERT_TRUE(answer.ok()) << answer.message;
    EXPECT_EQ(answer.chunks.size(), static_cast<std::size_t>(num_tokens));
    EXPECT_EQ(answer.bytes("text"), models::null_model_text(bytes_of("abc"), 5, num_tokens));
  }
  EXPECT_EQ(server.ask({{"text", "abc"}}).chunks.size(), 16u);
  EXPECT_NE(server.ask({{"text", "abc"}, {"seed", 6}}).bytes("text"), models::null_model_text(bytes_of("abc"), 5, 16));
  EXPECT_TRUE(server.pools_are_empty());
}

TEST(NullModel, TakesTokenIds) {
  const ToyServer server("null");
  const Answer answer = server.ask({{"prompt_ids", {9, 30000, 12}}, {"max_tokens", 3}});
  ASSERT_TRUE(answer.ok()) << answer.message;
  EXPECT_EQ(answer.bytes("text"), models::null_model_text(std::vector<std::int32_t>{9, 30000, 12}, 0, 3));
}

TEST(NullModel, ManyAtOnceAnswerAsAlone) {
  const ToyServer server("null", {}, 64);
  std::vector<json> bodies;
  for (int i = 0; i < 64; ++i)
    bodies.push_back({{"text", "prompt " + std::to_string(i)}, {"max_tokens", 1 + i}, {"seed", i}});
  const std::vector<Answer> answers = alone_and_together(server, bodies);
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(answers[static_cast<std::size_t>(i)].bytes("text"),
              models::null_model_text(bytes_of("prompt " + std::to_string(i)), static_cast<std::uint64_t>(i), 1 + i));
  EXPECT_TRUE(server.pools_are_empty());
}

TEST(NullModel, RefusesWrongFields) {
  const ToyServer server("null");
  const std::pair<json, std::string> cases[] = {
      {{{"text", ""}}, "text"},
      {{{"text", "a"}, {"max_tokens", 0}}, "max_tokens"},
      {{{"text", "a"}, {"max_tokens", 1 << 20}}, "text"},
      {{{"prompt_ids", {-1}}}, "prompt_ids"},
      {{{"prompt_ids", {1.5}}}, "prompt_ids"},
      {{{"prompt_ids", "x"}}, "prompt_ids"},
      {{{"text", "a"}, {"temperature", 3}}, "temperature"},
  };
  for (const auto& [body, field] : cases) {
    const Answer answer = server.ask(body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.param, field) << body << answer.message;
  }
}

TEST(NullModel, OptionsAreChecked) {
  models::ModelSource source{.name = "null"};
  source.options.set("step_us", std::int64_t{500});
  EXPECT_TRUE(models::declare_null_model(source));
  source.options.set("step_us", std::int64_t{-1});
  EXPECT_FALSE(models::declare_null_model(source));
  source.options.set("step_us", std::string("soon"));
  EXPECT_FALSE(models::declare_null_model(source));
}

}  // namespace
}  // namespace mstar::toys
