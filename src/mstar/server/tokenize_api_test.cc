// POST /tokenize and /detokenize over real sockets in front of a fake runtime.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;

struct TokenizeTest : ServerFixture {
  TestAnswer ask_json(const std::string& path, const std::string& body) {
    return ask(port, post(path, "application/json", body));
  }
};

TEST_F(TokenizeTest, PromptsAndChatsBecomeTokens) {
  start();
  EXPECT_EQ(ask_json("/tokenize", R"({"model":"lab/fake-llm","prompt":"Hi"})").body,
            R"({"tokens":[72,105],"count":2,"max_model_len":4096})");
  const std::string messages = R"([{"role":"user","content":"x"}])";
  const json got = json::parse(ask_json("/tokenize", "{\"messages\":" + messages + "}").body);
  EXPECT_EQ(got["count"], messages.size());
  EXPECT_EQ(got["tokens"].size(), messages.size());
}

// Long texts are read in the background; the connection goes on behind them.
TEST_F(TokenizeTest, LongTextsAreAnsweredInTheirTurn) {
  start();
  const std::string text(100'000, 'a');
  TestClient client(port);
  ASSERT_TRUE(client.send(post("/tokenize", "application/json", R"({"prompt":")" + text + "\"}") + get("/health")));
  const json got = json::parse(client.read().body);
  EXPECT_EQ(got["count"], text.size());
  EXPECT_EQ(client.read().body, R"({"status":"healthy"})");

  ASSERT_TRUE(client.send(post("/tokenize", "application/json", R"({"prompt":[")" + text + "\"]}")));
  const TestAnswer refused = client.read();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, testing::HasSubstr("\"param\":\"prompt\""));

  TestClient leaver(port);
  ASSERT_TRUE(leaver.send(post("/detokenize", "application/json", "{\"tokens\":[1" + text + "]}")));
  leaver.reset();
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections_open") == "mstar_http_connections_open 2"; }));
}

TEST_F(TokenizeTest, TokensBecomeText) {
  start();
  const TestAnswer answer = ask_json("/detokenize", R"({"model":"lab/fake-llm","tokens":[72,34,105]})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"prompt":"H\"i"})");
  EXPECT_EQ(ask_json("/detokenize", R"({"tokens":[]})").body, R"({"prompt":""})");
}

TEST_F(TokenizeTest, WrongFieldsAreNamed) {
  start();
  struct Row {
    std::string path, body, param;
    int status = 400;
  };
  const std::vector<Row> rows = {
      {"/tokenize", R"({"model":"lab/fake-llm"})", "prompt"},
      {"/tokenize", R"({"prompt":5})", "prompt"},
      {"/tokenize", R"({"prompt":""})", "prompt"},
      {"/tokenize", R"({"prompt":"a","messages":[{"role":"user","content":"x"}]})", "prompt"},
      {"/tokenize", R"({"messages":[]})", "messages"},
      {"/tokenize", R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":"no"})",
       "add_generation_prompt"},
      {"/tokenize", R"({"prompt":"a","model":7})", "model"},
      {"/tokenize", R"({"prompt":"a","model":"nobody"})", "model", 404},
      {"/tokenize", R"({"prompt":"a","model":"fake-whisper"})", "model", 404},
      {"/detokenize", R"({"tokens":"a"})", "tokens"},
      {"/detokenize", R"({"tokens":[1.5]})", "tokens"},
      {"/detokenize", R"({"tokens":[-1]})", "tokens"},
      {"/detokenize", R"({"tokens":[300]})", "tokens"},
      {"/detokenize", R"({"tokens":[99999999999]})", "tokens"},
      {"/detokenize", R"({})", "tokens"},
  };
  for (const Row& row : rows) {
    const TestAnswer answer = ask_json(row.path, row.body);
    EXPECT_EQ(answer.status, row.status) << row.body;
    EXPECT_EQ(json::parse(answer.body)["error"]["param"], row.param) << row.body << answer.body;
  }
  EXPECT_EQ(ask(port, post("/tokenize", "text/plain", "a")).status, 415);
}

}  // namespace
}  // namespace mstar::server
