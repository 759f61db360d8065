// What POST /v1/chat/completions refuses, over real sockets in front of a fake runtime.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct ChatFaults : ServerFixture {
  // A body with one user's message and `more` members.
  static std::string body(const std::string& more = {}) {
    return R"({"model":"lab/fake-llm","messages":[{"role":"user","content":"x"}])" + (more.empty() ? "" : "," + more) +
           "}";
  }
  TestAnswer chat(std::string_view text) { return ask(port, post("/v1/chat/completions", "application/json", text)); }
};

TEST_F(ChatFaults, WrongFieldsAreNamed) {
  start();
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":2.1)", "temperature"},
      {R"("temperature":true)", "temperature"},
      {R"("temperature":NaN)", "temperature"},
      {R"("temperature":-Infinity)", "temperature"},
      {R"("temperature":1e999)", "temperature"},
      {R"("top_p":1.5)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("min_p":[0.1])", "min_p"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":{})", "frequency_penalty"},
      {R"("seed":"1")", "seed"},
      {R"("seed":18446744073709551615)", "seed"},
      {R"("seed":1.5)", "seed"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":"16")", "max_tokens"},
      {R"("max_completion_tokens":1e300)", "max_completion_tokens"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("ignore_eos":"yes")", "ignore_eos"},
      {R"("ignore_eos":1)", "ignore_eos"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":1000000000000)", "n"},
      {R"("n":"2")", "n"},
      {R"("best_of":3)", "best_of"},
      {R"("stream":"true")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":[])", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options"},
      {R"("stop":5)", "stop"},
      {R"("stop":["a",5])", "stop"},
      {R"("stop":[""])", "stop"},
      {R"("stop_token_ids":5)", "stop_token_ids"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":[4294967296])", "stop_token_ids"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("logit_bias":{"a":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"1":null})", "logit_bias"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias"},
      {R"("logprobs":5)", "logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("response_format":{"type":"json_object"})", "response_format"},
      {R"("response_format":"text")", "response_format"},
      {R"("response_format":{})", "response_format"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function"})", "tool_choice"},
      {R"("tools":{})", "tools"},
      {R"("tools":[{"type":"web"}])", "tools"},
      {R"("tools":["x"])", "tools"},
      {R"("tools":[{"type":"function","function":{"name":""}}])", "tools"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools"},
      {R"("functions":[{"name":"f"}])", "functions"},
      {R"("modalities":["text","audio"])", "modalities"},
      {R"("audio":{"voice":"x"})", "audio"},
      {R"("chat_template_kwargs":5)", "chat_template_kwargs"},
      {R"("chat_template_kwargs":{"enable_thinking":"no"})", "chat_template_kwargs"},
      {R"("add_generation_prompt":0)", "add_generation_prompt"},
      {R"("guided_json":{"type":"object"})", "guided_json"},
      {R"("model":5)", "model"},
      {R"("model":"")", "model"},
      {"\"model\":\"" + std::string(257, 'm') + "\"", "model"},
      {"\"cache_salt\":\"" + std::string(257, 's') + "\"", "cache_salt"},
      {R"("seed":18446744073709551616)", "seed"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":{"minimum":-9223372036854775809}}}])",
       "tools"},
      {R"("messages":[])", "messages"},
      {R"("messages":{})", "messages"},
      {R"("messages":null)", "messages"},
      {"\"user\":\"\xFF\"", "user"},
  };
  for (const auto& [field, param] : rows) {
    const TestAnswer answer = chat(body(field));
    EXPECT_EQ(answer.status, 400) << field;
    const json error = json::parse(answer.body)["error"];
    EXPECT_EQ(error["param"], param) << field << answer.body;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("'" + param));
  }
  EXPECT_EQ(frontend.num_submitted(), 0);
}

TEST_F(ChatFaults, WrongMessagesAreNamed) {
  start();
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"("x")", "messages[0]'"},
      {R"({"content":"x"})", "messages[0].role'"},
      {R"({"role":"robot","content":"x"})", "messages[0].role'"},
      {R"({"role":"user"})", "messages[0].content'"},
      {R"({"role":"user","content":null})", "messages[0].content'"},
      {R"({"role":"user","content":5})", "messages[0].content'"},
      {R"({"role":"user","content":[]})", "messages[0].content'"},
      {R"({"role":"user","content":["a"]})", "messages[0].content[0]'"},
      {R"({"role":"user","content":[{"text":"a"}]})", "messages[0].content[0].type'"},
      {R"({"role":"user","content":[{"type":"text"}]})", "messages[0].content[0].text'"},
      {R"({"role":"user","content":[{"type":"smell","text":"a"}]})", "messages[0].content[0].type'"},
      {R"({"role":"system","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]})",
       "only users may send media"},
      {R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/b.png"}}]})", "data: URL"},
      {R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,?"}}]})", "base64"},
      {R"({"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA"}}]})", "input_audio.format'"},
      {R"({"role":"user","content":"x","name":5})", "messages[0].name'"},
      {R"({"role":"tool","content":"x"})", "messages[0].tool_call_id'"},
      {R"({"role":"assistant","content":"x","tool_calls":{}})", "messages[0].tool_calls'"},
      {R"({"role":"assistant","tool_calls":[{"id":"a"}]})", "messages[0].tool_calls[0].function'"},
      {R"({"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{}"}}]})",
       "tool_calls[0].function.name'"},
      {R"({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":5}}]})",
       "tool_calls[0].function.arguments'"},
      {R"({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"n\":18446744073709551616}"}}]})",
       "tool_calls[0].function.arguments'"},
      {R"({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":")" +
           std::string(1 << 21, ' ') + "\"}}]}",
       "1 MiB"},
      {"{\"role\":\"user\",\"content\":\"\xC0\x80\"}", "'messages'"},
      {R"({"role":"user","content":"\ud800"})", "'messages'"},
  };
  for (const auto& [message, part] : rows) {
    const TestAnswer answer = chat(R"({"model":"lab/fake-llm","messages":[)" + message + "]}");
    EXPECT_EQ(answer.status, 400) << message;
    const json error = json::parse(answer.body)["error"];
    EXPECT_EQ(error["param"], "messages") << message;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(part));
  }
  EXPECT_EQ(frontend.num_submitted(), 0);
}

// In OpenAI's shape, with the word that clients look for.
TEST_F(ChatFaults, TheContextsEndHasItsCode) {
  start();
  frontend.refuse_with(
      std::move(std::move(invalid_request("'messages' has 5000 tokens; prompt and answer must fit into "
                                          "4096"))
                    .with_field("messages"))
          .with_reason(kContextExceeded));
  for (const char* stream : {"false", "true"}) {
    const TestAnswer answer = chat(body(std::string(R"("stream":)") + stream));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(json::parse(answer.body)["error"],
              json::parse(R"({"message":"'messages' has 5000 tokens; prompt and answer must fit into 4096",
                  "type":"invalid_request_error","param":"messages","code":"context_length_exceeded"})"));
  }
}

TEST_F(ChatFaults, ExcessIsRefused) {
  start();
  std::string stops = "\"stop\":[";
  for (int i = 0; i < 10'000; ++i) stops += (i ? ",\"s" : "\"s") + std::to_string(i) + "\"";
  const auto param = [&](const std::string& text) {
    const TestAnswer answer = chat(text);
    EXPECT_EQ(answer.status, 400);
    return json::parse(answer.body)["error"]["param"];
  };
  EXPECT_EQ(param(body(stops + "]")), "stop");
  EXPECT_EQ(param(body("\"stop\":\"" + std::string(5000, 'a') + "\"")), "stop");
  EXPECT_EQ(param(body("\"x\":" + std::string(100, '[') + std::string(100, ']'))), nullptr);
  EXPECT_EQ(param(std::string(100'000, '[')), nullptr);
  std::string members = "\"logit_bias\":{";
  for (int i = 0; i < 2000; ++i) members += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_EQ(param(body(members + "}")), nullptr);
  for (const char* text : {"", "{", "[]", "3", "null", "{\"model\":1}x"}) EXPECT_EQ(chat(text).status, 400) << text;
  EXPECT_EQ(ask(port, post("/v1/chat/completions", "text/plain", body())).status, 415);
  EXPECT_EQ(ask(port, get("/v1/chat/completions")).status, 405);
  EXPECT_EQ(frontend.num_submitted(), 0);
}

}  // namespace
}  // namespace mstar::server
