// POST /generate over real sockets.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using testing::ElementsAre;

struct GenerateTest : ServerFixture {
  GenerateTest() {
    frontend.set_script([](FakeJob& job) {
      job.text("Hi ");
      job.text(job.request.text);
      Params metadata;
      metadata.set("sample_rate", std::int64_t{24000});
      job.chunk({decl::Modality::audio, "pcm16", HostValue::blob(std::string_view("\0\1\xFF", 3)), metadata});
      job.finish();
    });
  }
  TestAnswer ask_json(std::string_view body) { return ask(port, post("/generate", "application/json", body)); }
};

TEST_F(GenerateTest, StreamsLinesByDefault) {
  start();
  const TestAnswer answer = ask_json(R"({"text":"you"})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.headers.at("content-type"), "application/x-ndjson; charset=utf-8");
  EXPECT_EQ(answer.body,
            "{\"modality\":\"text\",\"data\":\"SGkg\",\"metadata\":{}}\n"
            "{\"modality\":\"text\",\"data\":\"eW91\",\"metadata\":{}}\n"
            "{\"modality\":\"audio\",\"data\":\"AAH/\",\"metadata\":{\"format\":\"pcm16\",\"sample_rate\":24000}}\n");
  EXPECT_TRUE(frontend.last_request().stream);
  EXPECT_EQ(frontend.last_request().model, "lab/fake-llm");
  EXPECT_THAT(frontend.last_request().output_modalities, ElementsAre(decl::Modality::text));
}

TEST_F(GenerateTest, WholeAnswer) {
  start();
  const TestAnswer answer = ask_json(R"({"text":"you","streaming":false,"request_id":"r-1"})");
  EXPECT_EQ(answer.headers.at("x-request-id"), "r-1");
  EXPECT_EQ(json::parse(answer.body), json::parse(R"({"request_id":"r-1","outputs":{
      "text":[{"data":"SGkg","metadata":{}},{"data":"eW91","metadata":{}}],
      "audio":[{"data":"AAH/","metadata":{"format":"pcm16","sample_rate":24000}}]},
      "metadata":{},"usage":{"prompt_tokens":7,"completion_tokens":9}})"));
  EXPECT_EQ(frontend.last_request().fields.get_string("request_id", "").value(), "r-1");
}

TEST_F(GenerateTest, ThreeBodiesMakeTheSameRequest) {
  start();
  const std::string kwargs = R"({"seed":5,"temperature":0.5,"stop":["a","b"],"nested":{"deep":[1]}})";
  EXPECT_EQ(ask(port, post("/generate", "application/json",
                           R"({"text":"a b","streaming":false,"output_modalities":["text","audio"],"model_kwargs":)" +
                               kwargs + "}"))
                .status,
            200);
  const decl::ApiRequest from_json = frontend.last_request();
  EXPECT_EQ(ask(port, post("/generate", "application/x-www-form-urlencoded",
                           "text=a+b&streaming=false&output_modalities=text%2Caudio&model_kwargs=%7B%22seed%22%3A5%2C"
                           "%22temperature%22%3A0.5%2C%22stop%22%3A%5B%22a%22%2C%22b%22%5D%2C%22nested%22%3A%7B%22deep"
                           "%22%3A%5B1%5D%7D%7D"))
                .status,
            200);
  const decl::ApiRequest from_url = frontend.last_request();
  EXPECT_EQ(ask(port, post_form("/generate", {{"text", "a b"},
                                              {"streaming", "false"},
                                              {"output_modalities", "text, audio"},
                                              {"model_kwargs", kwargs}}))
                .status,
            200);
  const decl::ApiRequest from_form = frontend.last_request();
  for (const auto* each : {&from_json, &from_url, &from_form}) {
    EXPECT_EQ(each->text, "a b");
    EXPECT_FALSE(each->stream);
    EXPECT_THAT(each->output_modalities, ElementsAre(decl::Modality::text, decl::Modality::audio));
    EXPECT_EQ(each->fields.values().size(), 4u);
    EXPECT_EQ(each->fields.get_int("seed", 0).value(), 5);
    EXPECT_EQ(each->fields.get_number("temperature", 0).value(), 0.5);
    EXPECT_THAT(each->fields.get_strings("stop").value(), ElementsAre("a", "b"));
    EXPECT_EQ(each->fields.get_string("nested", "").value(), R"({"deep":[1]})");
  }
}

TEST_F(GenerateTest, FilesFindTheirModality) {
  start();
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"files\"; filename=\"../x/cat.PNG\"\r\n\r\npng\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"files\"; filename=\"a.mp3\"\r\n\r\nmp3\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\nwhat?\r\n--b--\r\n";
  EXPECT_EQ(ask(port, post("/generate", "multipart/form-data; boundary=b", body)).status, 200);
  decl::ApiRequest request = frontend.last_request();
  ASSERT_EQ(request.media.size(), 2u);
  EXPECT_EQ(request.media[0].modality, decl::Modality::image);
  EXPECT_EQ(request.media[0].file_name, "cat.PNG");
  EXPECT_EQ(request.media[0].bytes.text(), "png");
  EXPECT_EQ(request.media[1].modality, decl::Modality::audio);

  EXPECT_EQ(ask_json(R"({"files":[{"name":"a.mp4","data":"AAECAw=="}],"input_modalities":"video,text"})").status, 200);
  request = frontend.last_request();
  ASSERT_EQ(request.media.size(), 1u);
  EXPECT_EQ(request.media[0].modality, decl::Modality::video);
  EXPECT_EQ(request.media[0].bytes.text(), std::string("\0\1\2\3", 4));
}

TEST_F(GenerateTest, BadRequestsNameTheField) {
  start();
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({"text":"x","output_modalities":"smell"})", "output_modalities"},
      {R"({"text":"x","output_modalities":{"a":1}})", "output_modalities"},
      {R"({"text":"x","streaming":"maybe"})", "streaming"},
      {R"({"text":5})", "text"},
      {R"({"text":"x","model":["a","b"]})", "model"},
      {R"({"text":"x","model_kwargs":"{"})", "model_kwargs"},
      {R"({"text":"x","model_kwargs":"[1]"})", "model_kwargs"},
      {R"({"text":"x","model_kwargs":[1]})", "model_kwargs"},
      {R"({"text":"x","request_id":"a b"})", "request_id"},
      {R"({"files":[{"name":"a.xyz","data":"AAAA"}]})", "files"},
      {R"({"files":[{"name":"a.png","data":"A"}]})", "files"},
      {R"({"files":[{"name":"a.png","data":"?AAA"}]})", "files"},
      {R"({"files":[{"name":"a.png","data":""}]})", "files"},
      {R"({"files":[{"name":"a.png"}]})", "files"},
      {R"({"files":["a.png"]})", "files"},
      {R"({"files":{"name":"a.png"}})", "files"},
      {R"({"files":[{"name":"a.png","data":"AAAA"}],"input_modalities":"audio"})", "input_modalities"},
  };
  for (const auto& [body, field] : rows) {
    const TestAnswer answer = ask_json(body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(json::parse(answer.body)["error"]["param"], field) << body;
  }
  for (const std::string& body : std::vector<std::string>{"", "{", "[]", "3", "{\"a\":\"\xFF\"}", "{\"a\":1}x"})
    EXPECT_EQ(ask_json(body).status, 400) << body;
  EXPECT_EQ(ask_json(std::string(100'000, '[')).status, 400);
  EXPECT_EQ(ask_json("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}").status, 400);
  EXPECT_EQ(ask(port, post("/generate", "application/x-www-form-urlencoded", "text=%zz")).status, 400);
  EXPECT_EQ(ask(port, post("/generate", "text/plain", "x")).status, 415);
  EXPECT_EQ(ask(port, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").status, 415);
  EXPECT_EQ(frontend.num_submitted(), 0);
}

}  // namespace
}  // namespace mstar::server
