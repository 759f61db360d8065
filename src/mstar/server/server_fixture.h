// What the socket tests share: a server on a free port in front of a fake runtime.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mstar/base/log.h"
#include "mstar/server/fake_frontend.h"
#include "mstar/server/http_server.h"
#include "mstar/server/test_client.h"

namespace mstar::server {

struct ServerFixture : testing::Test {
  ServerFixture() { set_log_level("off"); }

  void start(ServerConfig config = {}) {
    config.port = 0;
    auto started = HttpServer::start(config, frontend);
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
    port = server->port();
  }

  using Fields = std::vector<std::pair<std::string, std::string>>;
  // A transcription with a file and a model, and `more` fields.
  static std::string transcription(const Fields& more = {}) {
    Fields fields = {{"@file", "RIFF"}, {"model", "whisper-1"}};
    fields.insert(fields.end(), more.begin(), more.end());
    return post_form("/v1/audio/transcriptions", fields);
  }
  std::string metric(const std::string& line_start) const {
    const std::string text = ask(port, get("/metrics")).body;
    const std::size_t at = text.find("\n" + line_start);
    return at == std::string::npos ? "none" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  }
  // Polls for as long as a test may take.
  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 16000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  FakeFrontend frontend;
  std::unique_ptr<HttpServer> server;
  std::uint16_t port = 0;
};

}  // namespace mstar::server
