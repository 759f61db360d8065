// API keys and CORS, over real sockets in front of a fake runtime.
#include "mstar/server/access.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;

TEST(Access, KeysAreComparedWhole) {
  const std::vector<std::string> keys = {"sk-one", "sk-second"};
  for (const char* good : {"Bearer sk-one", "bearer sk-second", "BEARER  sk-one "})
    EXPECT_TRUE(has_known_key(good, keys)) << good;
  for (const char* bad : {"", "Bearer", "Bearer ", "Bearer sk-on", "Bearer sk-onee", "Bearer sk-onesk-one", "sk-one",
                          "Basic sk-one", "Bearer SK-ONE", "Bearersk-one", "Bearer sk-one sk-one"})
    EXPECT_FALSE(has_known_key(bad, keys)) << bad;
  EXPECT_FALSE(has_known_key("Bearer x", {}));
  EXPECT_FALSE(has_known_key("Bearer ", {""}));
}

TEST(Access, Origins) {
  EXPECT_EQ(allowed_origin("http://a", {"*"}), "*");
  EXPECT_EQ(allowed_origin("", {"http://a", "*"}), "*");
  EXPECT_EQ(allowed_origin("http://b", {"http://a", "http://b"}), "http://b");
  EXPECT_EQ(allowed_origin("http://a.evil", {"http://a"}), "");
  EXPECT_EQ(allowed_origin("", {"http://a"}), "");
  EXPECT_EQ(allowed_origin("http://a", {}), "");
}

struct AccessTest : ServerFixture {
  AccessTest() {
    config.api_keys = {"sk-one", "sk-two"};
    config.cors_origins = {"http://a", "http://b"};
  }
  static std::string chat(std::string_view headers) {
    return post("/v1/chat/completions", "application/json",
                R"({"model":"lab/fake-llm","messages":[{"role":"user","content":"x"}]})", headers);
  }
  ServerConfig config;
};

TEST_F(AccessTest, KeysAreAskedFor) {
  start(config);
  EXPECT_EQ(ask(port, chat("Authorization: Bearer sk-two\r\n")).status, 200);
  EXPECT_EQ(ask(port, get("/v1/models", "Authorization: Bearer sk-one\r\n")).status, 200);
  for (const std::string& request :
       {chat(""), chat("Authorization: Bearer sk-three\r\n"), get("/v1/models"), get("/metrics"), get("/debug/profile"),
        get("/debug/workers"), post("/debug/workers/0/drain", "text/plain", ""),
        get("/v1/models", "Authorization: Basic sk-one\r\n"), post("/generate", "application/json", "{")}) {
    const TestAnswer answer = ask(port, request);
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
    const json error = json::parse(answer.body)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], nullptr);
    EXPECT_EQ(error["code"], "invalid_api_key");
  }
  EXPECT_EQ(frontend.num_submitted(), 1);
}

TEST_F(AccessTest, ProbesAndPreflightsNeedNoKey) {
  start(config);
  EXPECT_EQ(ask(port, get("/health")).status, 200);
  EXPECT_EQ(ask(port, get("/ready")).status, 200);
  EXPECT_EQ(ask(port, get("/nothing")).status, 404);
  const TestAnswer answer = ask(port,
                                "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://b\r\n"
                                "Access-Control-Request-Method: POST\r\n"
                                "Access-Control-Request-Headers: authorization, content-type\r\n\r\n");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "http://b");
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"), "authorization, content-type");
}

TEST_F(AccessTest, OnlyListedOriginsAreNamed) {
  start(config);
  TestAnswer answer = ask(port, get("/health", "Origin: http://a\r\n"));
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "http://a");
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  answer = ask(port, get("/v1/models", "Origin: http://a\r\n"));  // 401: a page must be able to read it
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "http://a");
  answer = ask(port, get("/health", "Origin: http://evil\r\n"));
  EXPECT_EQ(answer.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  // A streamed answer has them too.
  answer = ask(port, post("/v1/chat/completions", "application/json",
                          R"({"model":"lab/fake-llm","stream":true,"messages":[{"role":"user","content":"x"}]})",
                          "Origin: http://b\r\nAuthorization: Bearer sk-one\r\n"));
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "http://b");
}

}  // namespace
}  // namespace mstar::server
