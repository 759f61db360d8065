// What each route answers, over real sockets in front of a fake runtime.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using ServerTest = ServerFixture;

// Checks the OpenAI error shape.
void expect_error(const TestAnswer& answer, int status, const json& param, const json& code) {
  EXPECT_EQ(answer.status, status) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  const json body = json::parse(answer.body, nullptr, false);
  ASSERT_TRUE(body.is_object() && body.contains("error")) << answer.body;
  const json& error = body["error"];
  EXPECT_EQ(error.size(), 4u);
  EXPECT_FALSE(error.at("message").get<std::string>().empty());
  EXPECT_TRUE(error.at("type").is_string());
  EXPECT_EQ(error.at("param"), param) << answer.body;
  EXPECT_EQ(error.at("code"), code) << answer.body;
}

TEST_F(ServerTest, HealthIsAnswered) {
  start();
  const TestAnswer answer = ask(port, get("/health"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"status":"healthy"})");
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
}

TEST_F(ServerTest, ReadyFollowsTheRuntime) {
  start();
  frontend.set_state({false, false, "loading \"weights\""});
  TestAnswer answer = ask(port, get("/ready"));
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body, R"({"status":"starting","reason":"loading \"weights\""})");
  EXPECT_EQ(ask(port, get("/health")).status, 200);
  frontend.set_state({true, false, ""});
  answer = ask(port, get("/ready"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"status":"ready"})");
  frontend.set_state({true, true, ""});
  EXPECT_EQ(ask(port, get("/ready")).status, 503);
}

TEST_F(ServerTest, MetricsJoinRuntimeAndServer) {
  start();
  ask(port, get("/health"));
  ask(port, get("/nothing"));
  const TestAnswer answer = ask(port, get("/metrics"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(answer.body, HasSubstr("\nfake_pages 0\n"));
  EXPECT_THAT(answer.body, HasSubstr("mstar_http_requests_total{route=\"/health\",status=\"200\"} 1\n"));
  EXPECT_THAT(answer.body, HasSubstr("mstar_http_requests_total{route=\"other\",status=\"404\"} 1\n"));
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections_open") == "mstar_http_connections_open 1"; }));
}

TEST_F(ServerTest, AProfileIsGivenWhereOneIsTaken) {
  start();
  TestAnswer answer = ask(port, get("/debug/profile"));
  EXPECT_EQ(answer.status, 404);
  const json error = json::parse(answer.body)["error"];
  EXPECT_EQ(error["code"], "profile_off");
  EXPECT_EQ(error["message"], "no profile is taken here: start the server with --profile phases");
  frontend.set_profile(R"({"workers":[]})");
  answer = ask(port, get("/debug/profile"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  EXPECT_EQ(answer.body, R"({"workers":[]})");
}

TEST_F(ServerTest, ModelsAreListedWithAliases) {
  start();
  const json list = json::parse(ask(port, get("/v1/models")).body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 4u);
  EXPECT_EQ(
      list["data"][1],
      json::parse(
          R"({"id":"whisper-1","object":"model","created":1700000000,"owned_by":"mstar","root":"fake-whisper"})"));
  EXPECT_EQ(json::parse(ask(port, get("/v1/models/whisper-1")).body), list["data"][1]);
  EXPECT_EQ(json::parse(ask(port, get("/v1/models/lab/fake-llm")).body), list["data"][2]);
  EXPECT_EQ(json::parse(ask(port, get("/v1/models/lab%2Ffake-llm")).body), list["data"][2]);
  expect_error(ask(port, get("/v1/models/gpt-9")), 404, "model", "model_not_found");
}

TEST_F(ServerTest, UnknownPathsAndMethods) {
  start();
  expect_error(ask(port, get("/v1/nothing")), 404, nullptr, "not_found");
  expect_error(ask(port, get("/v1/models/")), 404, nullptr, "not_found");
  TestAnswer answer = ask(port, post("/health", "application/json", "{}"));
  expect_error(answer, 405, nullptr, "method_not_allowed");
  EXPECT_EQ(answer.headers.at("allow"), "GET, HEAD, OPTIONS");
  answer = ask(port, get("/v1/audio/transcriptions"));
  expect_error(answer, 405, nullptr, "method_not_allowed");
  EXPECT_EQ(answer.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(ask(port, "BREW /health HTTP/1.1\r\nHost: x\r\n\r\n").status, 405);
}

TEST_F(ServerTest, HeadHasTheLengthButNoBody) {
  start();
  TestClient client(port);
  client.send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n" + get("/health"));
  const TestAnswer head = client.read(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "20");
  EXPECT_EQ(client.read().body.size(), 20u);
}

TEST_F(ServerTest, PreflightIsAllowed) {
  start();
  const TestAnswer answer =
      ask(port,
          "OPTIONS /generate HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\n"
          "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(answer.headers.at("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"), "authorization");
  EXPECT_EQ(answer.headers.count("content-length"), 0u);
}

TEST_F(ServerTest, CorsCanBeSwitchedOff) {
  ServerConfig config;
  config.cors_origins.clear();
  start(config);
  EXPECT_EQ(ask(port, get("/health")).headers.count("access-control-allow-origin"), 0u);
}

TEST_F(ServerTest, RequestIdIsKeptWhenSane) {
  start();
  EXPECT_EQ(ask(port, get("/health", "X-Request-Id: my-id.1:2\r\n")).headers.at("x-request-id"), "my-id.1:2");
  for (const std::string& bad : {std::string("two words"), std::string(129, 'a'), std::string("a\"b")}) {
    const TestAnswer answer = ask(port, get("/health", "X-Request-Id: " + bad + "\r\n"));
    EXPECT_THAT(answer.headers.at("x-request-id"), StartsWith("req-"));
  }
  EXPECT_NE(ask(port, get("/health")).headers.at("x-request-id"), ask(port, get("/health")).headers.at("x-request-id"));
  EXPECT_EQ(ask(port, get("/no", "X-Request-Id: mine\r\n")).headers.at("x-request-id"), "mine");
}

TEST_F(ServerTest, TranscriptionsInEveryFormat) {
  start();
  TestAnswer answer = ask(port, transcription());
  EXPECT_EQ(answer.body, R"({"text":"Hello world. Bye.","usage":{"type":"duration","seconds":5}})");
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  answer = ask(port, transcription({{"response_format", "text"}}));
  EXPECT_EQ(answer.body, "Hello world. Bye.\n");
  EXPECT_THAT(answer.headers.at("content-type"), StartsWith("text/plain"));
  answer = ask(port, transcription({{"response_format", "srt"}}));
  EXPECT_EQ(answer.body,
            "1\n00:00:00,000 --> 00:00:02,500\nHello world.\n\n2\n00:00:02,500 --> 00:00:04,500\nBye.\n\n");
  answer = ask(port, transcription({{"response_format", "vtt"}}));
  EXPECT_EQ(answer.body,
            "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello world.\n\n00:00:02.500 --> 00:00:04.500\nBye.\n\n");
  answer = ask(port, transcription({{"response_format", "verbose_json"}}));
  const json verbose = json::parse(answer.body);
  EXPECT_EQ(verbose["task"], "transcribe");
  EXPECT_EQ(verbose["language"], "english");
  EXPECT_EQ(verbose["duration"], 4.5);
  EXPECT_EQ(verbose["text"], "Hello world. Bye.");
  EXPECT_FALSE(verbose.contains("words"));
  ASSERT_EQ(verbose["segments"].size(), 2u);
  EXPECT_EQ(verbose["segments"][1], json::parse(R"({"id":1,"seek":0,"start":2.5,"end":4.5,"text":" Bye.",
      "tokens":[50364,11,50464],"temperature":0,"avg_logprob":-0.25,"compression_ratio":1.5,"no_speech_prob":0.01})"));
}

TEST_F(ServerTest, TranscriptionFieldsTravelOn) {
  start();
  const TestAnswer answer = ask(port, transcription({{"language", "en"},
                                                     {"prompt", "names: Ana"},
                                                     {"temperature", "0.5"},
                                                     {"seed", "7"},
                                                     {"response_format", "verbose_json"},
                                                     {"timestamp_granularities[]", "word"},
                                                     {"timestamp_granularities[]", "segment"},
                                                     {"beam_size", "1"}}));
  EXPECT_EQ(answer.status, 200);
  const decl::ApiRequest request = frontend.last_request();
  EXPECT_EQ(request.route, decl::Route::audio_transcriptions);
  EXPECT_EQ(request.model, "whisper-1");
  EXPECT_EQ(request.text, "names: Ana");
  EXPECT_FALSE(request.stream);
  ASSERT_EQ(request.media.size(), 1u);
  EXPECT_EQ(request.media[0].field, "file");
  EXPECT_EQ(request.media[0].file_name, "file.wav");
  EXPECT_EQ(request.media[0].content_type, "audio/wav");
  EXPECT_EQ(request.media[0].bytes.text(), "RIFF");
  EXPECT_EQ(request.fields.get_number("temperature", 0).value(), 0.5);
  EXPECT_EQ(request.fields.get_int("seed", 0).value(), 7);
  EXPECT_EQ(request.fields.get_string("language", "").value(), "en");
  EXPECT_EQ(request.fields.get_string("beam_size", "").value(), "1");
  EXPECT_THAT(request.fields.get_strings("timestamp_granularities").value(), ElementsAre("word", "segment"));
  EXPECT_FALSE(request.fields.has("model"));
}

TEST_F(ServerTest, TranslationsAreAnotherRoute) {
  start();
  const TestAnswer answer =
      ask(port, post_form("/v1/audio/translations",
                          {{"@file", "RIFF"}, {"model", "fake-whisper"}, {"response_format", "verbose_json"}}));
  EXPECT_EQ(json::parse(answer.body)["task"], "translate");
  EXPECT_EQ(json::parse(answer.body)["language"], "english");
  EXPECT_EQ(frontend.last_request().route, decl::Route::audio_translations);
}

TEST_F(ServerTest, BadTranscriptionsNameTheField) {
  start();
  const std::string path = "/v1/audio/transcriptions";
  expect_error(ask(port, post_form(path, {{"model", "whisper-1"}})), 400, "file", nullptr);
  expect_error(ask(port, post_form(path, {{"@file", "RIFF"}})), 400, "model", nullptr);
  expect_error(ask(port, post_form(path, {{"@file", ""}, {"model", "whisper-1"}})), 400, "file", nullptr);
  expect_error(ask(port, post_form(path, {{"file", "text"}, {"model", "whisper-1"}})), 400, "file", nullptr);
  expect_error(ask(port, transcription({{"@file", "twice"}})), 400, "file", nullptr);
  expect_error(ask(port, transcription({{"@other", "x"}})), 400, "other", nullptr);
  expect_error(ask(port, transcription({{"model", "twice"}})), 400, "model", nullptr);
  expect_error(ask(port, transcription({{"response_format", "xml"}})), 400, "response_format", nullptr);
  expect_error(ask(port, transcription({{"response_format", "srt"}, {"stream", "true"}})), 400, "response_format",
               nullptr);
  expect_error(ask(port, transcription({{"stream", "perhaps"}})), 400, "stream", nullptr);
  expect_error(ask(port, transcription({{"temperature", "hot"}})), 400, "temperature", nullptr);
  expect_error(ask(port, transcription({{"temperature", "1.5"}})), 400, "temperature", nullptr);
  expect_error(ask(port, transcription({{"seed", "1.5"}})), 400, "seed", nullptr);
  expect_error(ask(port, transcription({{"max_tokens", "0"}})), 400, "max_tokens", nullptr);
  expect_error(ask(port, transcription({{"timestamp_granularities[]", "word"}})), 400, "timestamp_granularities",
               nullptr);
  expect_error(ask(port, transcription({{"response_format", "verbose_json"}, {"timestamp_granularities[]", "line"}})),
               400, "timestamp_granularities", nullptr);
  expect_error(ask(port, transcription({{"language", "\xFF\xFE"}})), 400, "language", nullptr);
  TestAnswer answer = ask(port, post_form(path, {{"@file", "RIFF"}, {"model", "gpt-9"}}));
  expect_error(answer, 404, "model", "model_not_found");
  expect_error(ask(port, post(path, "application/json", "{}")), 415, "Content-Type", "unsupported_content_type");
  expect_error(ask(port, post(path, "multipart/form-data", "x")), 400, "Content-Type", nullptr);
  EXPECT_EQ(frontend.num_submitted(), 0);
}

TEST_F(ServerTest, StreamedTranscription) {
  start();
  const TestAnswer answer = ask(port, transcription({{"stream", "true"}}));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(answer.body,
            "data: {\"type\":\"transcript.text.delta\",\"delta\":\"Hello world.\"}\n\n"
            "data: {\"type\":\"transcript.text.delta\",\"delta\":\" Bye.\"}\n\n"
            "data: {\"type\":\"transcript.text.done\",\"text\":\"Hello world. Bye.\",\"usage\":{\"type\":\"tokens\","
            "\"input_tokens\":7,\"output_tokens\":9,\"total_tokens\":16}}\n\n");
  EXPECT_TRUE(frontend.last_request().stream);
}

TEST_F(ServerTest, ErrorsOfSubmitHaveTheirStatus) {
  start();
  frontend.refuse_with(exhausted("the queue is full"));
  TestAnswer answer = ask(port, transcription());
  expect_error(answer, 429, nullptr, "rate_limit_exceeded");
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  frontend.refuse_with(unavailable("draining"));
  answer = ask(port, transcription());
  expect_error(answer, 503, nullptr, "service_unavailable");
  EXPECT_EQ(answer.headers.count("retry-after"), 1u);
  frontend.refuse_with(invalid_request("no such language").with_field("language"));
  expect_error(ask(port, transcription()), 400, "language", nullptr);
}

TEST_F(ServerTest, ErrorsOfARunningRequestHaveTheirStatus) {
  start();
  const std::vector<std::pair<Error, int>> rows = {{invalid_request("not audio").with_field("file"), 400},
                                                   {bad_model("no tensor"), 500},
                                                   {exhausted("no pages"), 503},
                                                   {unavailable("a worker died"), 503},
                                                   {internal_error("a bug"), 500}};
  for (const auto& [error, status] : rows) {
    frontend.set_script([error = error](FakeJob& job) { job.fail(error); });
    TestAnswer answer = ask(port, transcription());
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(json::parse(answer.body)["error"]["message"], error.message);
    // Before the first event of a stream its status is still free.
    EXPECT_EQ(ask(port, transcription({{"stream", "true"}})).status, status);
  }
}

TEST_F(ServerTest, ALateErrorIsTheLastEvent) {
  start();
  frontend.set_script([](FakeJob& job) {
    job.segment(0, 0, 1, " One");
    job.fail(internal_error("a bug"));
  });
  TestAnswer answer = ask(port, transcription({{"stream", "true"}}));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  EXPECT_THAT(answer.body, testing::EndsWith(R"(data: {"error":{"message":"a bug","type":"server_error","param":null,)"
                                             R"("code":"internal_error"}})"
                                             "\n\n"));
  frontend.set_script([](FakeJob& job) {
    job.text("One");
    job.fail(exhausted("no pages"));
  });
  answer = ask(port, post("/generate", "application/json", R"({"text":"x"})"));
  EXPECT_THAT(answer.body, HasSubstr("\n{\"modality\":\"error\",\"data\":\"bm8gcGFnZXM=\",\"metadata\":{\"status\":503,"
                                     "\"message\":\"no pages\",\"code\":\"overloaded\"}}\n"));
}

TEST_F(ServerTest, AWrongSegmentFailsItsRequestAlone) {
  start();
  frontend.set_script([](FakeJob& job) {
    job.chunk({decl::Modality::text, "segment", HostValue::utf8("not json")});
    job.wait_aborted(std::chrono::seconds(20));
  });
  EXPECT_EQ(ask(port, transcription()).status, 500);
  EXPECT_EQ(frontend.num_aborted(), 1);
  frontend.set_script(FakeFrontend::two_segments);
  EXPECT_EQ(ask(port, transcription()).status, 200);
}

}  // namespace
}  // namespace mstar::server
