// HTTP itself, over real sockets: framing, limits, time-outs, connections.
#include <gmock/gmock.h>

#include "mstar/server/server_fixture.h"
#include "mstar/server/transfer_watch.h"

namespace mstar::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using HttpProtocolTest = ServerFixture;

TEST_F(HttpProtocolTest, MalformedRequestsAreRefusedAndClosed) {
  start();
  const std::vector<std::pair<std::string, int>> rows = {
      {"garbage\r\n\r\n", 400},
      {"GET /health\r\n\r\n", 400},
      {"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET health HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /health HTTP/2.0\r\nHost: x\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"GET /health HTTP/1.1\r\nHost: x\r\nbroken header\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: x\r\na b: c\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", 501},
      {"POST /generate HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
       "xyz\r\n",
       400},
      {"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
       "2\r\n{}garbage\r\n",
       400},
  };
  for (const auto& [bytes, status] : rows) {
    TestClient client(port);
    client.send(bytes);
    const TestAnswer answer = client.read();
    ASSERT_EQ(answer.status, status) << bytes << answer.body;
    EXPECT_EQ(answer.headers.at("connection"), "close") << bytes;
    EXPECT_EQ(answer.headers.count("x-request-id"), 1u) << bytes;
    EXPECT_TRUE(client.closed_by_server()) << bytes;
  }
  EXPECT_EQ(ask(port, get("/health")).status, 200);
}

TEST_F(HttpProtocolTest, HostIsNeededExactlyOnce) {
  start();
  EXPECT_EQ(ask(port, "GET /health HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(ask(port, "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").status, 400);
  EXPECT_EQ(ask(port, "GET /health HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_EQ(ask(port, "GET http://any/health?x=1 HTTP/1.1\r\nHost: any\r\n\r\n").status, 200);
}

TEST_F(HttpProtocolTest, KeepAliveAndClose) {
  start();
  TestClient client(port);
  for (int i = 0; i < 3; ++i) {
    client.send(get("/health"));
    EXPECT_EQ(client.read().status, 200);
  }
  client.send(transcription());
  EXPECT_EQ(client.read().status, 200);
  client.send(get("/no/such"));
  EXPECT_EQ(client.read().status, 404);
  client.send(post("/generate", "application/json", "{"));
  EXPECT_EQ(client.read().status, 400);
  client.send(get("/health", "Connection: close\r\n"));
  const TestAnswer last = client.read();
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());

  TestClient old(port);
  old.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read().status, 200);
  EXPECT_TRUE(old.closed_by_server());
  TestClient old_kept(port);
  old_kept.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(old_kept.read().headers.at("connection"), "keep-alive");
  old_kept.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old_kept.read().status, 200);
}

TEST_F(HttpProtocolTest, KeepAliveCanBeSwitchedOff) {
  ServerConfig config;
  config.keep_alive = false;
  start(config);
  TestClient client(port);
  client.send(get("/health"));
  EXPECT_EQ(client.read().headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpProtocolTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += get("/health", "X-Request-Id: h" + std::to_string(i) + "\r\n");
    if (i % 10 == 0) all += transcription({{"stream", i % 20 ? "true" : "false"}});
  }
  TestClient client(port);
  client.send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.read().headers["x-request-id"], "h" + std::to_string(i));
    if (i % 10) continue;
    const TestAnswer answer = client.read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.complete);
  }
}

TEST_F(HttpProtocolTest, AHalfClosedClientGetsItsQuickAnswers) {
  start();
  TestClient client(port);
  client.send(get("/health") + get("/v1/models"));
  client.half_close();
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 200);
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpProtocolTest, RequestsInSmallPieces) {
  start();
  TestClient client(port);
  for (const char c : transcription() + "\r\n" + get("/health")) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 200);
}

TEST_F(HttpProtocolTest, ChunkedBodies) {
  start();
  const std::string head =
      "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  TestClient client(port);
  client.send(head + "8\r\n{\"text\":\r\n4;ext=1\r\n\"x\"}\r\n0\r\nTrailer: t\r\n\r\n" + get("/health"));
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(frontend.last_request().text, "x");
  EXPECT_EQ(client.read().body, R"({"status":"healthy"})");
  // An extension without end is not gathered without end.
  TestClient endless(port);
  endless.send(head + "8;" + std::string(200'000, 'x'));
  EXPECT_EQ(endless.read().status, 400);
}

TEST_F(HttpProtocolTest, ExpectContinue) {
  start();
  const std::string request = transcription();
  const std::size_t body = request.find("\r\n\r\n") + 4;
  TestClient client(port);
  client.send(request.substr(0, body - 2) + "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send(request.substr(body));
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(ask(port, get("/health", "Expect: tea\r\n")).status, 417);
}

TEST_F(HttpProtocolTest, ExpectContinueIsNotGivenToARefusedBody) {
  ServerConfig config;
  config.body_limit_bytes = 100;
  start(config);
  TestClient client(port);
  client.send(
      "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 101\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n"), testing::StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpProtocolTest, BodyLimit) {
  ServerConfig config;
  config.body_limit_bytes = 1000;
  config.json_limit_bytes = 500;
  start(config);
  const auto sized = [](std::size_t bytes) { return "{\"text\":\"" + std::string(bytes - 11, 'x') + "\"}"; };
  EXPECT_EQ(ask(port, post("/generate", "application/json", sized(500))).status, 200);
  EXPECT_EQ(ask(port, post("/generate", "application/json", sized(501))).status, 413);
  EXPECT_EQ(ask(port, post("/generate", "application/json", sized(1001))).status, 413);
  const std::string chunk(600, 'x');
  const TestAnswer answer =
      ask(port,
          "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; "
          "boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n258\r\n" +
              chunk + "\r\n258\r\n" + chunk + "\r\n0\r\n\r\n");
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.headers.at("connection"), "close");
}

TEST_F(HttpProtocolTest, AClientThatStillUploadsSeesItsError) {
  ServerConfig config;
  config.body_limit_bytes = 1 << 20;
  start(config);
  TestClient client(port);
  // Far more than the socket buffers hold: it can only be sent if the server keeps on reading.
  EXPECT_TRUE(client.send(post("/generate", "application/json", std::string(std::size_t{32} << 20, ' '))));
  EXPECT_EQ(client.read().status, 413);
}

TEST_F(HttpProtocolTest, MemoryOfAllBodiesIsBounded) {
  ServerConfig config;
  config.max_buffered_bytes = 100'000;
  start(config);
  TestClient holder(port);
  const std::string big = post("/generate", "application/json", std::string(90'000, ' '));
  holder.send(std::string_view(big).substr(0, big.size() - 1));
  ASSERT_TRUE(eventually([&] {
    const std::string line = metric("mstar_http_received_bytes_total");
    return std::stod(line.substr(line.find(' '))) > 90'000;
  }));
  ASSERT_TRUE(eventually([&] {
    return ask(port, post("/generate", "application/json", std::string(20'000, ' ') + "{\"text\":\"x\"}")).status ==
           503;
  }));
  holder.close();
  ASSERT_TRUE(eventually([&] {
    return ask(port, post("/generate", "application/json", std::string(20'000, ' ') + "{\"text\":\"x\"}")).status ==
           200;
  }));
}

TEST_F(HttpProtocolTest, HeaderLimit) {
  start();
  EXPECT_EQ(ask(port, get("/health", "A: " + std::string(15'000, 'x') + "\r\n")).status, 200);
  EXPECT_EQ(ask(port, get("/health", "A: " + std::string(17'000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(ask(port, get("/" + std::string(200'000, 'x'))).status, 431);
  TestClient endless(port);
  endless.send("GET /health HTTP/1.1\r\n");
  bool open = true;
  for (int i = 0; i < 5000 && open; ++i) open = endless.send("X-Header-" + std::to_string(i) + ": y\r\n");
  EXPECT_EQ(endless.read().status, 431);
}

TEST_F(HttpProtocolTest, SlowClientsTimeOut) {
  ServerConfig config;
  config.header_timeout = milliseconds(150);
  config.body_timeout = milliseconds(400);
  config.idle_timeout = milliseconds(300);
  config.linger_timeout = milliseconds(50);
  start(config);
  // Made before anything connects: idle connections are closed soon.
  const std::string large = post_form("/v1/audio/transcriptions", {{"@file", std::string(16 << 20, 'a')}});
  TestClient idle(port);
  TestClient slow_header(port);
  slow_header.send("GET /health HTTP/1.1\r\nHost:");
  TestClient slow_body(port);
  const std::string request = transcription();
  slow_body.send(std::string_view(request).substr(0, request.size() - 5));
  // What came fast before gives no credit: at the least rate it would be hours.
  TestClient stalled(port);
  stalled.send(std::string_view(large).substr(0, 15 << 20));
  // Dripping does not help: the header has one deadline.
  TestClient dripping(port);
  for (int i = 0; i < 60 && dripping.send(i ? "a" : "GET /"); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(dripping.read().status, 408);
  EXPECT_EQ(slow_header.read().status, 408);
  EXPECT_EQ(slow_body.read().status, 408);
  EXPECT_EQ(stalled.read().status, 408);
  EXPECT_TRUE(slow_body.closed_by_server());
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections_open") == "mstar_http_connections_open 1"; }));
}

TEST_F(HttpProtocolTest, ADrippingBodyTimesOut) {
  ServerConfig config;
  config.body_timeout = milliseconds(500);
  config.linger_timeout = milliseconds(50);
  start(config);
  TestClient dripping(port);
  const std::string request = post_form("/v1/audio/transcriptions", {{"@file", std::string(100'000, 'a')}});
  dripping.send(std::string_view(request).substr(0, 1000));
  bool open = true;
  for (std::size_t i = 1000; i < 3000 && open; ++i) {
    open = dripping.send(request.substr(i, 1));  // a hundred bytes a second
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(dripping.read().status, 408);
}

TEST(TransferWatch, OnlyWhatMovesInTheWindowCounts) {
  const SteadyTime t0{};
  TransferWatch watch(seconds(30), 1024, std::chrono::hours(1));
  watch.begin(t0, 500);
  EXPECT_EQ(watch.deadline(), t0 + seconds(30));
  watch.moved_to(500 + (std::size_t{511} << 20), t0 + seconds(5));
  EXPECT_EQ(watch.deadline(), t0 + seconds(35));
  // Less than the rate gives no new window, however long it goes on.
  const std::size_t base = 500 + (std::size_t{511} << 20);
  watch.moved_to(base + 30 * 1024 - 1, t0 + seconds(34));
  EXPECT_EQ(watch.deadline(), t0 + seconds(35));
  watch.moved_to(base + 30 * 1024, t0 + seconds(34));
  EXPECT_EQ(watch.deadline(), t0 + seconds(64));
}

TEST(TransferWatch, ASteadyTransferEndsAtTheLimit) {
  const SteadyTime t0{};
  TransferWatch watch(seconds(30), 1024, seconds(3600));
  watch.begin(t0, 0);
  int t = 0;
  for (std::size_t bytes = 0; watch.deadline() > t0 + seconds(t); bytes += 2048)
    watch.moved_to(bytes, t0 + seconds(++t));
  EXPECT_EQ(t, 3600);
}

TEST_F(HttpProtocolTest, ATruncatedBodyIsRefused) {
  start();
  const std::string request = transcription();
  TestClient client(port);
  client.send(std::string_view(request).substr(0, request.size() - 20));
  client.half_close();
  EXPECT_EQ(client.read().status, 400);
  // A Content-Length that cuts the closing boundary off.
  std::string body = request.substr(request.find("\r\n\r\n") + 4);
  body.resize(body.size() - 10);
  EXPECT_EQ(ask(port, post("/v1/audio/transcriptions", "multipart/form-data; boundary=----test-boundary", body)).status,
            400);
}

TEST_F(HttpProtocolTest, ConnectionsOverTheLimitAreToldSo) {
  ServerConfig config;
  config.max_connections = 2;
  start(config);
  TestClient first(port);
  TestClient second(port);
  first.send(get("/health"));
  second.send(get("/health"));
  EXPECT_EQ(first.read().status, 200);
  EXPECT_EQ(second.read().status, 200);
  TestClient third(port);
  const TestAnswer answer = third.read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.count("retry-after"), 1u);
  EXPECT_TRUE(third.closed_by_server());
  first.close();
  third.close();
  EXPECT_TRUE(eventually([&] { return ask(port, get("/health")).status == 200; }));
}

TEST_F(HttpProtocolTest, APortInUseIsAnError) {
  start();
  ServerConfig config;
  config.port = port;
  auto second = HttpServer::start(config, frontend);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::unavailable);
  EXPECT_THAT(second.error().message, testing::HasSubstr(std::to_string(port) + " is already in use"));
  config.host = "not a host";
  EXPECT_EQ(HttpServer::start(config, frontend).error().code, Code::invalid_request);
  config.host = "localhost";
  config.port = 0;
  EXPECT_TRUE(HttpServer::start(config, frontend));
}

}  // namespace
}  // namespace mstar::server
