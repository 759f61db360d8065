#include "mstar/load/http_client.h"

#include <gtest/gtest.h>

#include "mstar/load/fake_completions.h"
#include "mstar/load/load_run.h"

namespace mstar::load {
namespace {

Result<PlainAnswer> get(const FakeCompletions& server, double timeout_s = 20) {
  return http_get(*parse_http_url(server.url() + "/base"), "/v1/models", "secret", timeout_s);
}

TEST(HttpGet, AsksAndReads) {
  const FakeCompletions server([](const FakeRequest&, FakeWire& wire) {
    wire.piece_bytes = 1;
    wire.answer(200, "application/json", "{\"data\":[]}");
  });
  const auto answer = get(server);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->server, "fake/1");
  EXPECT_EQ(answer->body, "{\"data\":[]}");
  const FakeRequest request = server.requests().front();
  EXPECT_EQ(request.path, "/base/v1/models");
  EXPECT_NE(request.head.find("Authorization: Bearer secret"), request.head.npos);
  EXPECT_EQ(request.head.find("Content-Length"), request.head.npos);
}

TEST(HttpGet, BodiesOfEveryKind) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nTrailer: z\r\n\r\n", "abc"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc"},
      {"HTTP/1.0 200 OK\r\n\r\nabc", "abc"},  // ends with its connection
      {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
  };
  for (const auto& [bytes, body] : cases) {
    for (const std::size_t piece_bytes : {std::size_t{1}, std::size_t{1000}}) {
      const FakeCompletions server([&, bytes = bytes](const FakeRequest&, FakeWire& wire) {
        wire.piece_bytes = piece_bytes;
        wire.send(bytes);
        wire.close();
      });
      const auto answer = get(server);
      ASSERT_TRUE(answer) << bytes << answer.error().message;
      EXPECT_EQ(answer->body, body) << bytes;
    }
  }
}

TEST(HttpGet, FaultsSayWhatIsWrong) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"SSH-2.0-OpenSSH_9\r\n", "speaks no HTTP"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "closed the connection"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "speaks no HTTP"},
      {"", "closed the connection"},
  };
  for (const auto& [bytes, words] : cases) {
    const FakeCompletions server([bytes = bytes](const FakeRequest&, FakeWire& wire) {
      wire.send(bytes);
      wire.close();
    });
    const auto answer = get(server);
    ASSERT_FALSE(answer) << bytes;
    EXPECT_NE(answer.error().message.find(words), std::string::npos) << answer.error().message;
  }
  std::string dead;
  { dead = FakeCompletions(FakeCompletions::well).url(); }
  const auto nobody = http_get(*parse_http_url(dead), "/", "");
  ASSERT_FALSE(nobody);
  EXPECT_NE(nobody.error().message.find("nothing answers at"), std::string::npos);
  EXPECT_FALSE(http_get(*parse_http_url("no-such-host.invalid"), "/", ""));
}

TEST(HttpGet, GivesUpOnASilentServer) {
  const FakeCompletions server([](const FakeRequest&, FakeWire& wire) { wire.wait(60'000); });
  const auto answer = get(server, 0.05);
  ASSERT_FALSE(answer);
  EXPECT_NE(answer.error().message.find("has not answered"), std::string::npos);
}

}  // namespace
}  // namespace mstar::load
