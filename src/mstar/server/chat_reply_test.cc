// Thoughts and calls of tools in OpenAI's answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/server/chat_reply.h"
#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;

decl::Chunk chunk(const char* format, const std::string& text, int index = -1, const char* id = nullptr) {
  decl::Chunk out{.modality = decl::Modality::text, .format = format, .value = HostValue::utf8(text)};
  if (index >= 0) out.metadata.set("index", static_cast<std::int64_t>(index));
  if (id) out.metadata.set("id", std::string(id));
  return out;
}

const std::vector<decl::Chunk>& said() {
  static const std::vector<decl::Chunk> chunks = {chunk("thought", "H\"m"),          chunk("thought", "."),
                                                  chunk("utf8", "I look."),          chunk("call", "f", 0, "call_1"),
                                                  chunk("arguments", "{\"n\": ", 0), chunk("arguments", "1}", 0),
                                                  chunk("call", "g", 1, "call_2"),   chunk("arguments", "{}", 1)};
  return chunks;
}

TEST(ChatReply, WholeMessages) {
  ChatReply reply;
  for (const decl::Chunk& each : said()) reply.add(each);
  std::string text = "{";
  reply.append_to(text);
  EXPECT_EQ(json::parse(text + "}"), json::parse(R"({"content":"I look.","reasoning_content":"H\"m.","tool_calls":[
      {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"n\": 1}"}},
      {"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}]})"));
  EXPECT_EQ(reply.finish(decl::Finish::stop), decl::Finish::tool_calls);
  EXPECT_EQ(reply.finish(decl::Finish::length), decl::Finish::length);
  ChatReply calls;
  calls.add(chunk("call", "f", 0, "call_1"));
  text = "{";
  calls.append_to(text);
  EXPECT_TRUE(json::parse(text + "}")["content"].is_null());
  text = "{";
  ChatReply().append_to(text);
  EXPECT_EQ(text, "{\"content\":\"\"");
}

// What a client puts together of the deltas is the whole message.
TEST(ChatReply, DeltasAddUp) {
  json message = json::object();
  for (const decl::Chunk& each : said()) {
    if (is_said(each)) continue;
    std::string text;
    append_delta(text, each);
    const json delta = json::parse(text);
    if (delta.contains("reasoning_content"))
      message["thought"] = message.value("thought", "") + delta["reasoning_content"].get<std::string>();
    for (const json& call : delta.value("tool_calls", json::array())) {
      json& whole = message["calls"][call["index"].get<std::size_t>()];
      if (call.contains("id")) whole = {{"id", call["id"]}, {"name", call["function"]["name"]}, {"arguments", ""}};
      whole["arguments"] = whole["arguments"].get<std::string>() + call["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(message, json::parse(R"({"thought":"H\"m.","calls":[{"id":"call_1","name":"f","arguments":"{\"n\": 1}"},
      {"id":"call_2","name":"g","arguments":"{}"}]})"));
}

class ChatReplies : public ServerFixture {
 protected:
  void SetUp() override {
    frontend.set_script([](FakeJob& job) {
      for (const decl::Chunk& each : said()) job.chunk(each);
      job.end(decl::Finish::stop, {7, 9});
    });
    start();
  }
  TestAnswer chat(const std::string& more) {
    return ask(port, post("/v1/chat/completions", "application/json",
                          R"({"model":"lab/fake-llm","messages":[{"role":"user","content":"x"}])" + more + "}", ""));
  }
};

TEST_F(ChatReplies, OverHttp) {
  const json whole = json::parse(chat("").body)["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], "{\"n\": 1}");
  EXPECT_EQ(whole["message"]["reasoning_content"], "H\"m.");
  const std::string stream = chat(R"(,"stream":true)").body;
  EXPECT_THAT(stream, testing::HasSubstr(R"("delta":{"reasoning_content":"."},"logprobs":null,"finish_reason":null)"));
  EXPECT_THAT(stream, testing::HasSubstr(R"("delta":{"tool_calls":[{"index":1,"id":"call_2","type":"function",)"));
  EXPECT_THAT(stream, testing::HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"tool_calls")"));
}

}  // namespace
}  // namespace mstar::server
