// POST /v1/chat/completions over real sockets in front of a fake runtime.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

decl::Chunk with_logprobs(std::string_view text, const char* items) {
  decl::Chunk chunk{decl::Modality::text, "utf8", HostValue::utf8(text)};
  chunk.metadata.set("logprobs", std::string(items));
  return chunk;
}

struct ChatTest : ServerFixture {
  ChatTest() {
    frontend.set_script([](FakeJob& job) {
      job.text("Hi");
      job.text(" \"you\"\n\xE2\x82\xAC");
      job.end(decl::Finish::stop, {7, 9});
    });
  }
  // A body with one user's message and `more` members.
  static std::string body(const std::string& more = {}) {
    return R"({"model":"lab/fake-llm","messages":[{"role":"user","content":"x"}])" + (more.empty() ? "" : "," + more) +
           "}";
  }
  static std::string request(std::string_view text, std::string_view headers = "X-Request-Id: r1\r\n") {
    return post("/v1/chat/completions", "application/json", text, headers);
  }
  TestAnswer chat(std::string_view text) { return ask(port, request(text)); }
  // The messages that the runtime gets for these.
  json messages_for(const std::string& messages) {
    const TestAnswer answer = chat(R"({"model":"lab/fake-llm","messages":)" + messages + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(frontend.last_request().messages_json);
  }
};

// The bytes of a stream with its time taken out.
std::string without_times(std::string text) {
  const std::string name = "\"created\":";
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    at += name.size();
    text.erase(at, text.find(',', at) - at);
  }
  return text;
}

std::string event(const std::string& choice, const std::string& usage = "") {
  return R"(data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","created":,"model":"lab/fake-llm","choices":[)" +
         choice + "]" + usage + "}\n\n";
}
std::string delta(int index, const std::string& text) {
  return "{\"index\":" + std::to_string(index) + ",\"delta\":" + text + ",\"logprobs\":null,\"finish_reason\":null}";
}
const std::string kRole = R"({"role":"assistant","content":""})";

TEST_F(ChatTest, WholeAnswer) {
  start();
  const TestAnswer answer = chat(body());
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  json got = json::parse(answer.body);
  EXPECT_GT(got["created"], 1'700'000'000);
  got.erase("created");
  EXPECT_EQ(got, json::parse(R"({"id":"chatcmpl-r1","object":"chat.completion","model":"lab/fake-llm","choices":[
      {"index":0,"message":{"role":"assistant","content":"Hi \"you\"\n€","refusal":null},"logprobs":null,
       "finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}})"));
  const decl::ApiRequest made = frontend.last_request();
  EXPECT_EQ(made.route, decl::Route::chat_completions);
  EXPECT_FALSE(made.stream);
  EXPECT_EQ(made.messages_json, R"([{"role":"user","content":"x"}])");
  EXPECT_TRUE(made.tools_json.empty());
  EXPECT_TRUE(made.fields.values().empty());
}

TEST_F(ChatTest, LengthAndCachedTokensAreTold) {
  frontend.set_script([](FakeJob& job) { job.end(decl::Finish::length, {100, 3, 0, 64}); });
  start();
  const json got = json::parse(chat(body()).body);
  EXPECT_EQ(got["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(got["choices"][0]["message"]["content"], "");
  EXPECT_EQ(got["usage"], json::parse(R"({"prompt_tokens":100,"completion_tokens":3,"total_tokens":103,
                                         "prompt_tokens_details":{"cached_tokens":64}})"));
}

TEST_F(ChatTest, StreamHasTheseBytes) {
  start();
  const TestAnswer answer = chat(body(R"("stream":true)"));
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(without_times(answer.body), event(delta(0, kRole)) + event(delta(0, R"({"content":"Hi"})")) +
                                            event(delta(0, R"({"content":" \"you\"\n€"})")) +
                                            event(R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"})") +
                                            "data: [DONE]\n\n");
  EXPECT_TRUE(frontend.last_request().stream);
}

TEST_F(ChatTest, StreamWithUsage) {
  start();
  const TestAnswer answer = chat(body(R"("stream":true,"stream_options":{"include_usage":true})"));
  const std::string null = ",\"usage\":null";
  EXPECT_EQ(without_times(answer.body),
            event(delta(0, kRole), null) + event(delta(0, R"({"content":"Hi"})"), null) +
                event(delta(0, R"({"content":" \"you\"\n€"})"), null) +
                event(R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"})", null) +
                event("", R"(,"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16})") +
                "data: [DONE]\n\n");
}

TEST_F(ChatTest, LogprobsTravel) {
  const char* const kFirst = R"([{"token":"H","bytes":[72],"logprob":-0.5,"top_logprobs":[]}])";
  const char* const kMore = R"([{"token":"e","bytes":[101],"logprob":-1,"top_logprobs":[]},{"token":"y","bytes":[121],
                               "logprob":-2,"top_logprobs":[]}])";
  frontend.set_script([=](FakeJob& job) {
    job.chunk(with_logprobs("H", kFirst));
    job.chunk(with_logprobs("ey", kMore));
    job.end(decl::Finish::stop);
  });
  start();
  json got = json::parse(chat(body(R"("logprobs":true,"top_logprobs":2)")).body);
  const json& logprobs = got["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["content"].size(), 3u);
  EXPECT_EQ(logprobs["content"][0], json::parse(kFirst)[0]);
  EXPECT_EQ(logprobs["content"][2], json::parse(kMore)[1]);
  EXPECT_EQ(frontend.last_request().fields.get_bool("logprobs", false).value(), true);
  EXPECT_EQ(frontend.last_request().fields.get_int("top_logprobs", 0).value(), 2);

  const TestAnswer answer = chat(body(R"("logprobs":true,"stream":true)"));
  EXPECT_THAT(without_times(answer.body),
              HasSubstr(event(std::string(R"({"index":0,"delta":{"content":"H"},"logprobs":{"content":)") + kFirst +
                              R"(,"refusal":null},"finish_reason":null})")));
}

TEST_F(ChatTest, ChoicesAreRequestsOfTheirOwn) {
  frontend.set_script([](FakeJob& job) {
    job.text("seed " + std::to_string(job.request.fields.get_int("seed", -1).value()));
    job.end(decl::Finish::stop, {7, 2});
  });
  start();
  const json got = json::parse(chat(body(R"("n":3,"seed":9223372036854775807)")).body);
  ASSERT_EQ(got["choices"].size(), 3u);
  EXPECT_EQ(got["choices"][0]["message"]["content"], "seed 9223372036854775807");
  EXPECT_EQ(got["choices"][1]["message"]["content"], "seed -9223372036854775808");
  EXPECT_EQ(got["choices"][2]["index"], 2);
  EXPECT_EQ(got["usage"], json::parse(R"({"prompt_tokens":7,"completion_tokens":6,"total_tokens":13})"));
  EXPECT_EQ(frontend.num_submitted(), 3);

  const std::string stream = without_times(chat(body(R"("n":2,"stream":true,"seed":4)")).body);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(stream, HasSubstr(event(delta(i, kRole))));
    EXPECT_THAT(stream, HasSubstr(event(delta(i, "{\"content\":\"seed " + std::to_string(4 + i) + "\"}"))));
  }
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(stream.find("[DONE]"), stream.size() - 8);
}

// Each of them may find what another one has computed; what none had to compute was cached.
TEST_F(ChatTest, CachedTokensAreThoseThatNoChoiceComputed) {
  frontend.set_script([](FakeJob& job) {
    const std::int64_t cached[] = {64, 16, -1, 64};
    const auto k = static_cast<std::size_t>(job.request.fields.get_int("seed", 0).value());
    job.end(k == 1 ? decl::Finish::length : decl::Finish::stop, {100, 2, 0, cached[k]});
  });
  start();
  const json wanted = json::parse(R"({"prompt_tokens":100,"completion_tokens":8,"total_tokens":108,
                                      "prompt_tokens_details":{"cached_tokens":16}})");
  const json got = json::parse(chat(body(R"("n":4,"seed":0)")).body);
  EXPECT_EQ(got["usage"], wanted);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(got["choices"][i]["finish_reason"], i == 1 ? "length" : "stop");
  const TestAnswer stream = chat(body(R"("n":4,"seed":0,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_THAT(stream.body, HasSubstr(wanted["prompt_tokens_details"].dump()));
  EXPECT_THAT(stream.body, HasSubstr(R"({"index":1,"delta":{},"logprobs":null,"finish_reason":"length"})"));
}

TEST_F(ChatTest, OneFailureEndsAllChoices) {
  frontend.set_script([](FakeJob& job) {
    if (job.request.fields.get_int("seed", 0).value() == 11) return job.fail(internal_error("it broke"));
    job.wait_aborted(std::chrono::seconds(20));
  });
  start();
  const TestAnswer answer = chat(body(R"("n":3,"seed":10)"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(json::parse(answer.body)["error"]["message"], "it broke");
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 2; }));
}

TEST_F(ChatTest, LateFailureIsAnEvent) {
  frontend.set_script([](FakeJob& job) {
    job.text("Well");
    job.fail(unavailable("worker 1 is gone"));
  });
  start();
  const TestAnswer answer = chat(body(R"("stream":true)"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(without_times(answer.body),
            event(delta(0, kRole)) + event(delta(0, R"({"content":"Well"})")) +
                "data: {\"error\":{\"message\":\"worker 1 is gone\",\"type\":\"server_error\",\"param\":null,"
                "\"code\":\"service_unavailable\"}}\n\n");
}

TEST_F(ChatTest, EarlyFailureHasItsStatus) {
  frontend.set_script([](FakeJob& job) { job.fail(unavailable("no worker")); });
  start();
  EXPECT_EQ(chat(body(R"("stream":true)")).status, 503);
  frontend.refuse_with(exhausted("the queue is full"));
  EXPECT_EQ(chat(body(R"("stream":true)")).status, 429);
  frontend.refuse_with(std::nullopt);
  const TestAnswer unknown = chat(R"({"model":"no","messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(json::parse(unknown.body)["error"]["code"], "model_not_found");
}

TEST_F(ChatTest, LeavingCancelsEveryChoice) {
  frontend.set_script([](FakeJob& job) {
    job.text("a");
    job.wait_aborted(std::chrono::seconds(20));
  });
  start();
  TestClient client(port);
  client.send(request(body(R"("n":2,"stream":true)")));
  EXPECT_FALSE(client.read_until("{\"content\":\"a\"}").empty());
  client.close();
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 2; }));
}

TEST_F(ChatTest, SilenceIsFilledWithComments) {
  frontend.set_script([](FakeJob& job) {
    job.wait_aborted(std::chrono::milliseconds(150));
    job.text("late");
    job.end(decl::Finish::stop);
  });
  ServerConfig config;
  config.sse_keep_alive = std::chrono::milliseconds(20);
  start(config);
  const TestAnswer answer = chat(body(R"("stream":true)"));
  EXPECT_TRUE(answer.body.starts_with(": keep-alive\n\ndata: ") || answer.body.starts_with(": keep-alive\n\n: keep"));
  EXPECT_THAT(without_times(answer.body), HasSubstr(event(delta(0, R"({"content":"late"})"))));
}

TEST_F(ChatTest, WaitingTokensBecomeOneWrite) {
  frontend.set_script([](FakeJob& job) {
    for (int i = 0; i < 2000; ++i) job.text("tok");
    job.end(decl::Finish::stop);
  });
  start();
  const TestAnswer answer = chat(body(R"("stream":true)"));
  std::size_t num_events = 0;
  for (std::size_t at = 0; (at = answer.body.find("data: ", at)) != std::string::npos; ++at) ++num_events;
  EXPECT_EQ(num_events, 2003u);
  EXPECT_LT(answer.chunks.size(), 1500u);
}

TEST_F(ChatTest, SamplingFieldsReachTheModel) {
  start();
  EXPECT_EQ(chat(body(R"("temperature":0.5,"top_p":1,"top_k":40.0,"min_p":0.1,"repetition_penalty":1.1,
      "presence_penalty":-2,"frequency_penalty":2,"seed":-5,"max_tokens":3,"max_completion_tokens":4,"min_tokens":0,
      "ignore_eos":true,"stop":["a","b"],"stop_token_ids":[1,2],"logit_bias":{"5":-100,"7":1.5},
      "chat_template_kwargs":{"enable_thinking":false,"other":1},"response_format":{"type":"text"},
      "user":"me","store":true,"metadata":{"a":"b"},"unknown":[1,{"a":null}],"logprobs":null)"))
                .status,
            200);
  const Params fields = frontend.last_request().fields;
  EXPECT_EQ(fields.get_number("temperature", 0).value(), 0.5);
  EXPECT_EQ(fields.get_number("top_p", 0).value(), 1);
  EXPECT_EQ(fields.get_int("top_k", 0).value(), 40);
  EXPECT_EQ(fields.get_number("min_p", 0).value(), 0.1);
  EXPECT_EQ(fields.get_number("repetition_penalty", 0).value(), 1.1);
  EXPECT_EQ(fields.get_number("presence_penalty", 0).value(), -2);
  EXPECT_EQ(fields.get_number("frequency_penalty", 0).value(), 2);
  EXPECT_EQ(fields.get_int("seed", 0).value(), -5);
  EXPECT_EQ(fields.get_int("max_tokens", 0).value(), 3);
  EXPECT_EQ(fields.get_int("max_completion_tokens", 0).value(), 4);
  EXPECT_EQ(fields.get_int("min_tokens", 1).value(), 0);
  EXPECT_TRUE(fields.get_bool("ignore_eos", false).value());
  EXPECT_THAT(fields.get_strings("stop").value(), ElementsAre("a", "b"));
  EXPECT_FALSE(fields.get_bool("enable_thinking", true).value());
  const auto numbers = [&](const char* name) {
    return std::get<std::vector<double>>(fields.values().find(name)->second);
  };
  EXPECT_THAT(numbers("stop_token_ids"), ElementsAre(1, 2));
  EXPECT_THAT(numbers("logit_bias_ids"), ElementsAre(5, 7));
  EXPECT_THAT(numbers("logit_bias_values"), ElementsAre(-100, 1.5));
  EXPECT_EQ(fields.values().size(), 17u);
  EXPECT_EQ(chat(body(R"("stop":"one")")).status, 200);
  EXPECT_THAT(frontend.last_request().fields.get_strings("stop").value(), ElementsAre("one"));
}

TEST_F(ChatTest, MessagesBecomeWhatTemplatesExpect) {
  start();
  EXPECT_EQ(messages_for(R"([{"role":"developer","content":"d","name":"boss"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"extra":1},
      {"role":"assistant","content":null,"tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[2]}"}},
        {"id":"c2","type":"function","function":{"name":"g","arguments":"not json"}},
        {"id":"c3","type":"function","function":{"name":"h","arguments":""}}]},
      {"role":"tool","tool_call_id":"c1","content":"4"},
      {"role":"assistant","content":"ok","reasoning_content":"hm"}])"),
            json::parse(R"([{"role":"system","content":"d","name":"boss"},
      {"role":"user","content":"a\nb"},
      {"role":"assistant","content":null,"tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}},
        {"id":"c2","type":"function","function":{"name":"g","arguments":"not json"}},
        {"id":"c3","type":"function","function":{"name":"h","arguments":{}}}]},
      {"role":"tool","content":"4","tool_call_id":"c1"},
      {"role":"assistant","content":"ok","reasoning_content":"hm"}])"));
  // Members keep the client's order.
  EXPECT_THAT(frontend.last_request().messages_json, HasSubstr(R"("arguments":{"z":1,"a":[2]})"));
}

TEST_F(ChatTest, ToolsAreHandedOn) {
  start();
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"b":{},"a":{}}}}}])";
  EXPECT_EQ(chat(body("\"tools\":" + tools)).status, 200);
  EXPECT_EQ(frontend.last_request().tools_json, tools);
  EXPECT_EQ(chat(body("\"tool_choice\":\"auto\",\"tools\":" + tools)).status, 200);
  EXPECT_EQ(frontend.last_request().tools_json, tools);
  EXPECT_EQ(chat(body("\"tool_choice\":\"none\",\"tools\":" + tools)).status, 200);
  EXPECT_EQ(frontend.last_request().tools_json, "");
}

TEST_F(ChatTest, MediaTravelWithTheirPlaces) {
  start();
  EXPECT_EQ(
      messages_for(R"([{"role":"user","content":[{"type":"text","text":"see"},
      {"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC"}},
      {"type":"input_audio","input_audio":{"data":"AAE=","format":"wav"}}]}])"),
      json::parse(R"([{"role":"user","content":[{"type":"text","text":"see"},{"type":"image"},{"type":"audio"}]}])"));
  const decl::ApiRequest made = frontend.last_request();
  ASSERT_EQ(made.media.size(), 2u);
  EXPECT_EQ(made.media[0].modality, decl::Modality::image);
  EXPECT_EQ(made.media[0].content_type, "image/png");
  EXPECT_EQ(made.media[0].bytes.text(), std::string_view("\0\1\2", 3));
  EXPECT_EQ(made.media[1].modality, decl::Modality::audio);
}

// Long bodies take another way to the runtime.
TEST_F(ChatTest, LongPrompts) {
  frontend.set_script([](FakeJob& job) {
    job.text(std::to_string(job.request.messages_json.size()));
    job.end(decl::Finish::stop);
  });
  start();
  const std::string text(1 << 20, 'x');
  const auto with = [&](const std::string& more) {
    return R"({"model":"lab/fake-llm","messages":[{"role":"user","content":")" + text + "\"}]" + more + "}";
  };
  const json whole = json::parse(chat(with("")).body);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], std::to_string(text.size() + 30));
  EXPECT_TRUE(chat(with(R"(,"stream":true,"n":3)")).body.ends_with("[DONE]\n\n"));
  const TestAnswer wrong = chat(with(R"(,"temperature":9)"));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(json::parse(wrong.body)["error"]["param"], "temperature");
  frontend.refuse_with(exhausted("the queue is full"));
  EXPECT_EQ(chat(with("")).status, 429);
  frontend.refuse_with(std::nullopt);
  // Two on one connection, and clients that leave at any time.
  TestClient client(port);
  client.send(request(with("")) + request(body()));
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 200);
  frontend.set_script([](FakeJob& job) {
    job.text("a");
    job.wait_aborted(std::chrono::seconds(20));
  });
  const int before = frontend.num_submitted();
  for (int i = 0; i < 20; ++i) {
    TestClient leaver(port);
    leaver.send(request(with(R"(,"stream":true)")));
    if (i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(i));
    leaver.close();
  }
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_calls_in_flight") == "mstar_http_calls_in_flight 0"; }));
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == frontend.num_submitted() - before; }));
}

}  // namespace
}  // namespace mstar::server
