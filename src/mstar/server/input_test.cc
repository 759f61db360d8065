// POST /generate/{id}/inputs/{port}: input while a request runs.
#include <nlohmann/json.hpp>

#include "mstar/server/base64.h"
#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;

struct InputTest : ServerFixture {
  InputTest() {
    // Says what it gets: "port dtype:numbers;".
    frontend.set_script([](FakeJob& job) {
      while (const auto input = job.wait_input()) {
        std::string text = input->port + " " + std::string(dtype_name(input->value.dtype())) + ":";
        if (input->value.dtype() == DType::i64)
          for (const auto each : input->value.as<std::int64_t>()) text += std::to_string(each) + ",";
        if (input->value.dtype() == DType::f32)
          for (const auto each : input->value.as<float>()) text += std::to_string(each) + ",";
        if (input->value.dtype() == DType::bytes) text += input->value.text();
        job.text(text + ";");
        if (input->done) break;
      }
      job.finish();
    });
  }
  static std::string call(const std::string& id, bool streaming = true) {
    const json body = {{"model", "lab/fake-world"}, {"request_id", id}, {"streaming", streaming}};
    return post("/generate", "application/json", body.dump());
  }
  TestAnswer send(const std::string& path, const std::string& body,
                  const std::string& type = "application/json") const {
    return ask(port, post(path, type, body));
  }
};

TEST_F(InputTest, ReachesTheRequestThatRuns) {
  start();
  TestClient client(port);
  client.send(call("r-1"));
  // The head comes before there is anything to say, so the client knows that its request runs.
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_NE(head.find("HTTP/1.1 200"), head.npos);
  EXPECT_NE(head.find("X-Request-Id: r-1\r\n"), head.npos) << head;
  EXPECT_EQ(json::parse(send("/generate/r-1/inputs/action", "[[1,2],[-3,4]]").body),
            json({{"request_id", "r-1"}, {"input", "action"}, {"done", false}}));
  EXPECT_EQ(send("/generate/r-1/inputs/action", "[0.5,2e3]").status, 200);
  EXPECT_EQ(send("/generate/r-1/inputs/sound?done=0", "raw \xFF", "application/octet-stream").status, 200);
  EXPECT_EQ(json::parse(send("/generate/r-1/inputs/action?done=1", "").body)["done"], true);
  const std::string said = client.read_until("\r\n0\r\n");
  EXPECT_EQ(send("/generate/r-1/inputs/action", "[1]").status, 404) << "it has ended";
  std::string text;
  for (std::size_t at = 0; (at = said.find("\"data\":\"", at)) != said.npos;) {
    at += 8;
    text += *base64_decode(said.substr(at, said.find('"', at) - at));
  }
  EXPECT_EQ(text, "action i64:1,2,-3,4,;action f32:0.500000,2000.000000,;sound bytes:raw \xFF;action bytes:;");
}

TEST_F(InputTest, TheHeadersIdWorksToo) {
  start();
  TestClient client(port);
  client.send(post("/generate", "application/json", R"({"model":"lab/fake-world"})", "X-Request-Id: from-header\r\n"));
  EXPECT_NE(client.read_until("\r\n\r\n").find("X-Request-Id: from-header\r\n"), std::string::npos);
  EXPECT_EQ(send("/generate/from-header/inputs/action?done=true", "[1]").status, 200);
  EXPECT_NE(client.read_until("\r\n0\r\n"), "");
}

TEST_F(InputTest, ErrorsComeAfterTheHead) {
  frontend.set_script([](FakeJob& job) {
    job.wait_input();
    job.fail(exhausted("no pages"));
  });
  start();
  TestClient client(port);
  client.send(call("r-2"));
  EXPECT_NE(client.read_until("\r\n\r\n"), "");
  EXPECT_EQ(send("/generate/r-2/inputs/action", "[1]").status, 200);
  EXPECT_NE(client.read_until("\r\n0\r\n").find("\"modality\":\"error\""), std::string::npos);
}

TEST_F(InputTest, WrongOnesAreRefusedAndNamed) {
  start();
  TestClient client(port);
  client.send(call("r-3"));
  EXPECT_NE(client.read_until("\r\n\r\n"), "");
  struct Row {
    std::string path, body;
    int status;
    std::string param;
  };
  const std::vector<Row> rows = {{"/generate/nobody/inputs/action", "[1]", 404, "request_id"},
                                 {"/generate/r-3/inputs/smell", "[1]", 404, "port"},
                                 {"/generate/r-3/inputs/", "[1]", 404, ""},
                                 {"/generate/r-3", "[1]", 404, ""},
                                 {"/generate/a%20b/inputs/action", "[1]", 404, ""},
                                 {"/generate/r-3/inputs/full", "[1]", 429, "body"},
                                 {"/generate/r-3/inputs/action?done=perhaps", "[1]", 400, "done"},
                                 {"/generate/r-3/inputs/action?stop=1", "[1]", 400, "stop"},
                                 {"/generate/r-3/inputs/action", "[1,", 400, "body"},
                                 {"/generate/r-3/inputs/action", "1", 400, "body"},
                                 {"/generate/r-3/inputs/action", "{\"a\":1}", 400, "body"},
                                 {"/generate/r-3/inputs/action", "[\"1\"]", 400, "body"},
                                 {"/generate/r-3/inputs/action", "[true]", 400, "body"},
                                 {"/generate/r-3/inputs/action", "[null]", 400, "body"},
                                 {"/generate/r-3/inputs/action", "[18446744073709551615]", 400, "body"},
                                 {"/generate/r-3/inputs/action", std::string(100'000, '['), 400, "body"},
                                 {"/generate/r-3/inputs/action", "[1] [2]", 400, "body"}};
  for (const Row& row : rows) {
    const TestAnswer answer = send(row.path, row.body);
    EXPECT_EQ(answer.status, row.status) << row.path << " " << row.body.substr(0, 40);
    const json param = json::parse(answer.body)["error"]["param"];
    EXPECT_EQ(param.is_string() ? param.get<std::string>() : "", row.param)
        << row.path << " " << row.body.substr(0, 40);
  }
  EXPECT_EQ(send("/generate/r-3/inputs/full", "[1]").headers.count("retry-after"), 1u);
  EXPECT_EQ(ask(port, get("/generate/r-3/inputs/action")).status, 405);
  EXPECT_EQ(send("/generate/r-3/inputs/action", std::string((1 << 20) + 1, ' ')).status, 413);
  EXPECT_EQ(send("/generate/r-3/inputs/action?done=1", "[]").status, 200) << "the request is none the worse";
}

TEST_F(InputTest, AClientThatGoesLeavesNoId) {
  start();
  {
    TestClient client(port);
    client.send(call("r-4"));
    EXPECT_NE(client.read_until("\r\n\r\n"), "");
  }
  EXPECT_TRUE(eventually([&] { return send("/generate/r-4/inputs/action", "[1]").status == 404; }));
}

}  // namespace
}  // namespace mstar::server
