// POST /v1/completions over real sockets in front of a fake runtime.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

struct CompletionsTest : ServerFixture {
  CompletionsTest() {
    frontend.set_script([](FakeJob& job) {
      job.text(" and");
      job.text(" so on");
      job.end(decl::Finish::length, {5, 2});
    });
  }
  static std::string body(const std::string& prompt, const std::string& more = {}) {
    return R"({"model":"lab/fake-llm","prompt":)" + prompt + (more.empty() ? "" : "," + more) + "}";
  }
  TestAnswer complete(const std::string& prompt, const std::string& more = {}) {
    return ask(port, post("/v1/completions", "application/json", body(prompt, more), "X-Request-Id: r1\r\n"));
  }
  std::vector<std::string> texts(const TestAnswer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::vector<std::string> out;
    const json parsed = json::parse(answer.body);
    for (const json& each : parsed["choices"]) out.push_back(each["text"]);
    return out;
  }
};

std::string without_times(std::string text) {
  const std::string name = "\"created\":";
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    at += name.size();
    text.erase(at, text.find(',', at) - at);
  }
  return text;
}

std::string event(const std::string& choice, const std::string& usage = "") {
  return R"(data: {"id":"cmpl-r1","object":"text_completion","created":,"model":"lab/fake-llm","choices":[)" + choice +
         "]" + usage + "}\n\n";
}
std::string text(int index, const std::string& said) {
  return "{\"index\":" + std::to_string(index) + ",\"text\":\"" + said + "\",\"logprobs\":null,\"finish_reason\":null}";
}
std::string end(int index, const std::string& reason) {
  return "{\"index\":" + std::to_string(index) + ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"" + reason +
         "\"}";
}

// Two tokens: "é" and " b", with one alternative each.
void say_with_logprobs(FakeJob& job) {
  const auto chunk = [&](std::string_view said, const char* items) {
    decl::Chunk out{decl::Modality::text, "utf8", HostValue::utf8(said)};
    out.metadata.set("logprobs", std::string(items));
    job.chunk(std::move(out));
  };
  chunk("\xC3\xA9", R"([{"token":"é","bytes":[195,169],"logprob":-0.5,"top_logprobs":[{"token":"x","logprob":-0.25},
                        {"token":"é","logprob":-0.5}]}])");
  chunk(" b", R"([{"token":" b","bytes":[32,98],"logprob":-1.5,"top_logprobs":[{"token":" b","logprob":-1.5}]}])");
  job.end(decl::Finish::stop, {5, 2});
}

TEST_F(CompletionsTest, WholeAnswer) {
  start();
  json got = json::parse(complete("\"On\"").body);
  EXPECT_GT(got["created"], 1'700'000'000);
  got.erase("created");
  EXPECT_EQ(got, json::parse(R"({"id":"cmpl-r1","object":"text_completion","model":"lab/fake-llm","choices":[
      {"index":0,"text":" and so on","logprobs":null,"finish_reason":"length"}],
      "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}})"));
  const decl::ApiRequest made = frontend.last_request();
  EXPECT_EQ(made.route, decl::Route::completions);
  EXPECT_EQ(made.text, "On");
  EXPECT_TRUE(made.fields.values().empty());
}

TEST_F(CompletionsTest, StreamHasTheseBytes) {
  start();
  EXPECT_EQ(without_times(complete("\"On\"", R"("stream":true,"stream_options":{"include_usage":true})").body),
            event(text(0, " and"), ",\"usage\":null") + event(text(0, " so on"), ",\"usage\":null") +
                event(end(0, "length"), ",\"usage\":null") +
                event("", R"(,"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7})") +
                "data: [DONE]\n\n");
  EXPECT_EQ(without_times(complete("\"On \\\"\"", R"("stream":true,"echo":true)").body),
            event(text(0, "On \\\"")) + event(text(0, " and")) + event(text(0, " so on")) + event(end(0, "length")) +
                "data: [DONE]\n\n");
}

TEST_F(CompletionsTest, EachPromptIsARequest) {
  frontend.set_script([](FakeJob& job) {
    job.text(job.request.text + std::to_string(job.request.fields.get_int("seed", 0).value()));
    job.end(decl::Finish::stop, {5, 2});
  });
  start();
  const TestAnswer answer = complete(R"(["a","b"])", R"("n":2,"seed":7,"echo":true)");
  EXPECT_THAT(texts(answer), ElementsAre("aa7", "aa8", "bb7", "bb8"));
  const json usage = json::parse(answer.body)["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 10);
  EXPECT_EQ(usage["completion_tokens"], 8);
  EXPECT_EQ(frontend.num_submitted(), 4);
}

TEST_F(CompletionsTest, UsageCountsEachPromptOnce) {
  frontend.set_script([](FakeJob& job) {
    const bool long_one = job.request.text == "bb";
    const bool first = job.request.fields.get_int("seed", 0).value() == 0;
    job.end(decl::Finish::stop, {long_one ? 40 : 20, 1, 0, long_one ? (first ? 32 : 16) : (first ? 0 : 16)});
  });
  start();
  EXPECT_EQ(json::parse(complete(R"(["a","bb"])", R"("n":2,"seed":0)").body)["usage"],
            json::parse(R"({"prompt_tokens":60,"completion_tokens":4,"total_tokens":64,
                            "prompt_tokens_details":{"cached_tokens":16}})"));
}

TEST_F(CompletionsTest, PromptsOfTokenIds) {
  start();
  EXPECT_THAT(texts(complete("[72,105]", R"("echo":true)")), ElementsAre("Hi and so on"));
  const auto ids = [](const decl::ApiRequest& request) {
    return std::get<std::vector<double>>(request.fields.values().find("prompt_ids")->second);
  };
  EXPECT_THAT(ids(frontend.last_request()), ElementsAre(72, 105));
  EXPECT_THAT(texts(complete("[[72],[105,106]]")), ElementsAre(" and so on", " and so on"));
  EXPECT_THAT(ids(frontend.requests()[1]), ElementsAre(72));
  EXPECT_THAT(ids(frontend.requests()[2]), ElementsAre(105, 106));
}

TEST_F(CompletionsTest, LogprobsAreColumns) {
  frontend.set_script(say_with_logprobs);
  start();
  EXPECT_EQ(json::parse(complete("\"x\"", R"("logprobs":2)").body)["choices"][0]["logprobs"],
            json::parse(R"({"tokens":["é"," b"],"token_logprobs":[-0.5,-1.5],
                "top_logprobs":[{"x":-0.25,"é":-0.5},{" b":-1.5}],"text_offset":[0,1]})"));
  EXPECT_EQ(frontend.last_request().fields.get_int("logprobs", 0).value(), 2);
  const std::string stream = without_times(complete("\"x\"", R"("logprobs":2,"stream":true)").body);
  EXPECT_THAT(stream, HasSubstr(event(R"({"index":0,"text":" b","logprobs":{"tokens":[" b"],"token_logprobs":[-1.5],)"
                                      R"("top_logprobs":[{" b":-1.5}],"text_offset":[1]},"finish_reason":null})")));
}

TEST_F(CompletionsTest, WrongFieldsAreNamed) {
  start();
  std::string many = "[\"a\"";
  for (int i = 0; i < 1024; ++i) many += ",\"a\"";
  many += "]";
  struct Row {
    std::string prompt, more, param;
  };
  const std::vector<Row> rows = {
      {"null", "", "prompt"},
      {"5", "", "prompt"},
      {"{}", "", "prompt"},
      {"[]", "", "prompt"},
      {"[[]]", "", "prompt"},
      {"[\"a\",1]", "", "prompt"},
      {"[1,\"a\"]", "", "prompt"},
      {"[[1],\"a\"]", "", "prompt"},
      {"[1.5]", "", "prompt"},
      {"[-1]", "", "prompt"},
      {"[4294967296]", "", "prompt"},
      {"[18446744073709551615]", "", "prompt"},
      {"[[1,[2]]]", "", "prompt"},
      {many, "", "prompt"},
      {"[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"]", "\"n\":128", "n"},
      {"[300]", "\"echo\":true", "prompt"},
      {"\"a\"", "\"echo\":true,\"logprobs\":1", "echo"},
      {"\"a\"", "\"echo\":\"yes\"", "echo"},
      {"\"a\"", "\"logprobs\":true", "logprobs"},
      {"\"a\"", "\"logprobs\":21", "logprobs"},
      {"\"a\"", "\"suffix\":\"b\"", "suffix"},
      {"\"a\"", "\"best_of\":2", "best_of"},
      {"\"a\"", "\"max_tokens\":0", "max_tokens"},
      {"\"a\"", "\"temperature\":\"0\"", "temperature"},
      {"\"\xFF\"", "", "prompt"},
  };
  for (const Row& row : rows) {
    const TestAnswer answer = complete(row.prompt, row.more);
    EXPECT_EQ(answer.status, 400) << row.prompt << row.more;
    EXPECT_EQ(json::parse(answer.body)["error"]["param"], row.param) << row.prompt << row.more << answer.body;
  }
  EXPECT_EQ(frontend.num_submitted(), 0);
}

}  // namespace
}  // namespace mstar::server
