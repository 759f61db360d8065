// The server over real sockets, in front of a fake runtime: what each route answers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mstar/server/fake_frontend.h"
#include "mstar/server/http_server.h"
#include "mstar/server/test_client.h"

namespace mstar::server {
namespace {

using nlohmann::json;

struct ServerTest : testing::Test {
  void start(ServerConfig config = {}) {
    config.port = 0;
    auto started = HttpServer::start(config, frontend);
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
    port = server->port();
  }
  FakeFrontend frontend;
  std::unique_ptr<HttpServer> server;
  std::uint16_t port = 0;
};

TEST_F(ServerTest, HealthIsAnswered) {
  start();
  const TestAnswer answer = ask(port, get("/health"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"status":"healthy"})");
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
}

TEST_F(ServerTest, TranscriptionAsJson) {
  start();
  const TestAnswer answer =
      ask(port, post_form("/v1/audio/transcriptions", {{"@file", "RIFF"}, {"model", "whisper-1"}}));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"text":"Hello world. Bye.","usage":{"type":"duration","seconds":5}})");
}

}  // namespace
}  // namespace mstar::server
