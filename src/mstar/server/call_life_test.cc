// The life of a call over real sockets: clients that leave or do not read, time-outs, drain, many at once.
#include <gmock/gmock.h>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using CallLifeTest = ServerFixture;

// Answers nothing (or one segment) and waits for its abort.
void stuck(FakeJob& job) {
  job.wait_aborted(seconds(20));
  job.fail(cancelled("aborted"));
}
void stuck_after_one(FakeJob& job) {
  job.segment(0, 0, 1, " One");
  stuck(job);
}

TEST_F(CallLifeTest, AClientThatLeavesBeforeTheAnswerAborts) {
  start();
  frontend.set_script(stuck);
  for (const bool hard : {false, true}) {
    const int before = frontend.num_aborted();
    TestClient client(port);
    client.send(transcription());
    ASSERT_TRUE(eventually([&] { return frontend.num_submitted() > before; }));
    if (hard) {
      client.reset();
    } else {
      client.close();
    }
    EXPECT_TRUE(eventually([&] { return frontend.num_aborted() > before; }));
  }
  EXPECT_EQ(metric("mstar_http_aborted_total"), "mstar_http_aborted_total{reason=\"client_gone\"} 2");
  EXPECT_EQ(metric("mstar_http_calls_in_flight"), "mstar_http_calls_in_flight 0");
}

TEST_F(CallLifeTest, AClientThatLeavesMidStreamAborts) {
  start();
  frontend.set_script(stuck_after_one);
  TestClient client(port);
  client.send(transcription({{"stream", "true"}}));
  EXPECT_THAT(client.read_until("\n\n"), testing::HasSubstr("One"));
  EXPECT_EQ(frontend.num_aborted(), 0);
  client.close();
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 1; }));
}

TEST_F(CallLifeTest, AFinishedCallIsNotAborted) {
  start();
  TestClient client(port);
  client.send(transcription());
  EXPECT_EQ(client.read().status, 200);
  client.close();
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections_open") == "mstar_http_connections_open 1"; }));
  EXPECT_EQ(frontend.num_aborted(), 0);
}

TEST_F(CallLifeTest, PipelinedBytesDuringACallWait) {
  start();
  std::atomic<bool> go{false};
  frontend.set_script([&](FakeJob& job) {
    while (!go && !job.aborted) std::this_thread::sleep_for(milliseconds(1));
    FakeFrontend::two_segments(job);
  });
  TestClient client(port);
  client.send(transcription());
  ASSERT_TRUE(eventually([&] { return frontend.num_submitted() == 1; }));
  // More than the connection's buffer holds.
  std::string more;
  for (int i = 0; i < 3000; ++i) more += get("/health");
  std::thread sender([&] { client.send(more); });
  go = true;
  EXPECT_EQ(client.read().status, 200);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(client.read().status, 200) << i;
  sender.join();
}

TEST_F(CallLifeTest, AClientThatLeavesBehindPipelinedBytesAborts) {
  start();
  frontend.set_script(stuck);
  TestClient client(port);
  // The connection's buffer is full, so nothing reads up to the end behind it.
  client.send(transcription() + std::string(100'000, '\n'));
  ASSERT_TRUE(eventually([&] { return frontend.num_submitted() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 1; }));
  EXPECT_EQ(metric("mstar_http_aborted_total"), "mstar_http_aborted_total{reason=\"client_gone\"} 1");
}

TEST_F(CallLifeTest, ASlowReaderIsAborted) {
  ServerConfig config;
  config.max_pending_out_bytes = 1 << 20;
  start(config);
  frontend.set_script([](FakeJob& job) {
    const std::string text(64 << 10, 'x');
    while (!job.aborted) {
      job.text(text);
      std::this_thread::sleep_for(milliseconds(1));
    }
    job.fail(cancelled("aborted"));
  });
  TestClient client(port);
  client.shrink_receive_buffer();
  client.send(post("/generate", "application/json", R"({"text":"x"})"));
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 1; }));
  EXPECT_EQ(metric("mstar_http_aborted_total"), "mstar_http_aborted_total{reason=\"slow_reader\"} 1");
}

TEST_F(CallLifeTest, AReaderThatStopsReadingTimesOut) {
  ServerConfig config;
  config.write_timeout = milliseconds(1000);
  start(config);
  frontend.set_script([](FakeJob& job) {
    for (int i = 0; i < 24; ++i) job.text(std::string(std::size_t{1} << 20, 'x'));
    job.finish();
  });
  TestClient client(port);
  client.send(post("/generate", "application/json", R"({"text":"x","streaming":false})"));
  // What was read fast before gives no credit: at the least rate it would be hours.
  ASSERT_TRUE(client.skip(std::size_t{8} << 20));
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections_open") == "mstar_http_connections_open 1"; }));
}

TEST_F(CallLifeTest, ALargeAnswerReachesASteadyReader) {
  start();
  frontend.set_script([](FakeJob& job) {
    for (int i = 0; i < 12; ++i) job.text(std::string(std::size_t{1} << 20, 'x'));
    job.finish();
  });
  const TestAnswer answer = ask(port, post("/generate", "application/json", R"({"text":"x","streaming":false})"));
  EXPECT_TRUE(answer.complete);
  EXPECT_GT(answer.body.size(), std::size_t{16} << 20);
}

TEST_F(CallLifeTest, RequestTimeOut) {
  ServerConfig config;
  config.request_timeout = milliseconds(100);
  start(config);
  frontend.set_script(stuck);
  TestClient client(port);
  client.send(transcription());
  EXPECT_EQ(client.read().status, 504);
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 1; }));
  client.send(get("/health"));
  EXPECT_EQ(client.read().status, 200);

  frontend.set_script(stuck_after_one);
  client.send(transcription({{"stream", "true"}}));
  const TestAnswer answer = client.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  EXPECT_THAT(answer.body, testing::HasSubstr("\"code\":\"request_timeout\""));
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 2; }));
}

TEST_F(CallLifeTest, AnIdleEventStreamIsKeptOpen) {
  ServerConfig config;
  config.sse_keep_alive = milliseconds(30);
  start(config);
  std::atomic<bool> go{false};
  frontend.set_script([&](FakeJob& job) {
    while (!go && !job.aborted) std::this_thread::sleep_for(milliseconds(1));
    FakeFrontend::two_segments(job);
  });
  TestClient client(port);
  client.send(transcription({{"stream", "true"}}));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(client.read_until(": keep-alive\n\n").empty());
  go = true;
  EXPECT_FALSE(client.read_until("transcript.text.done").empty());
}

TEST_F(CallLifeTest, EventsThatComeTogetherLeaveTogether) {
  ServerConfig config;
  config.num_io_threads = 1;
  start(config);
  frontend.set_script([](FakeJob& job) {
    for (int i = 0; i < 20'000; ++i) job.text("x");
    job.finish();
  });
  const TestAnswer answer = ask(port, transcription({{"stream", "true"}}));
  EXPECT_TRUE(answer.complete);
  std::size_t num_events = 0;
  for (std::size_t at = answer.body.find("data: "); at != std::string::npos; at = answer.body.find("data: ", at + 1))
    ++num_events;
  EXPECT_EQ(num_events, 20'001u);
  EXPECT_LT(answer.chunks.size(), 10'000u);
}

// Several loops, many streams at once, frames that leave together: each client gets its own bytes in their order.
TEST_F(CallLifeTest, ManyStreamsKeepTheirBytes) {
  constexpr std::size_t kClients = 60;
  constexpr int kPieces = 40;
  for (const bool io_uring : {true, false}) {
    ServerConfig config;
    config.num_io_threads = 3;
    config.io_uring = io_uring;
    start(config);
    frontend.set_script([](FakeJob& job) {
      const std::string name(job.request.media[0].bytes.text());
      for (int i = 0; i < kPieces && !job.aborted; ++i) {
        job.text(name + "/" + std::to_string(i) + ";");
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
      job.finish();
    });
    std::vector<TestClient> clients;
    clients.reserve(kClients);
    for (std::size_t c = 0; c < kClients; ++c) {
      clients.emplace_back(port);
      ASSERT_TRUE(clients.back().send(
          post_form("/v1/audio/transcriptions",
                    {{"@file", "client " + std::to_string(c)}, {"model", "whisper-1"}, {"stream", "true"}})));
    }
    for (std::size_t c = 0; c < kClients; c += 7) clients[c].reset();
    for (std::size_t c = 0; c < kClients; ++c) {
      if (c % 7 == 0) continue;
      const TestAnswer answer = clients[c].read();
      EXPECT_TRUE(answer.complete);
      std::string wanted;
      for (int i = 0; i < kPieces; ++i) wanted += "client " + std::to_string(c) + "/" + std::to_string(i) + ";";
      EXPECT_THAT(answer.body, testing::HasSubstr("\"text\":\"" + wanted + "\""));
      std::string deltas;
      for (std::size_t at = 0; (at = answer.body.find("\"delta\":\"", at)) != std::string::npos;) {
        at += 9;
        deltas += answer.body.substr(at, answer.body.find('"', at) - at);
      }
      EXPECT_EQ(deltas, wanted);
    }
    EXPECT_TRUE(eventually([&] { return metric("mstar_http_calls_in_flight") == "mstar_http_calls_in_flight 0"; }));
    server.reset();
  }
}

TEST_F(CallLifeTest, OldClientsGetStreamsUntilClose) {
  start();
  std::string request = transcription({{"stream", "true"}});
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  const TestAnswer answer = ask(port, request);
  EXPECT_EQ(answer.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_THAT(answer.body, testing::StartsWith("data: "));
  EXPECT_THAT(answer.body, testing::HasSubstr("transcript.text.done"));
}

TEST_F(CallLifeTest, TwoHundredConnectionsAtOnce) {
  start();
  std::atomic<int> num_running{0};
  frontend.set_script([&](FakeJob& job) {
    ++num_running;
    // All are in flight together before the first is answered.
    while (num_running < 200 && !job.aborted) std::this_thread::sleep_for(milliseconds(1));
    job.segment(0, 0, 1, " " + std::string(job.request.media[0].bytes.text()));
    job.finish();
  });
  std::vector<TestClient> clients;
  clients.reserve(200);
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(port);
    ASSERT_TRUE(clients.back().send(post_form(
        "/v1/audio/transcriptions",
        {{"@file", "clip " + std::to_string(i)}, {"model", "whisper-1"}, {"stream", i % 2 ? "true" : "false"}})));
  }
  for (int i = 0; i < 200; ++i) {
    const TestAnswer answer = clients[static_cast<std::size_t>(i)].read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, testing::HasSubstr("\"text\":\"clip " + std::to_string(i) + "\""));
  }
  EXPECT_EQ(metric("mstar_http_calls_in_flight"), "mstar_http_calls_in_flight 0");
}

TEST_F(CallLifeTest, DrainWaitsForCallsAndClosesIdleConnections) {
  start();
  std::atomic<bool> go{false};
  frontend.set_script([&](FakeJob& job) {
    while (!go && !job.aborted) std::this_thread::sleep_for(milliseconds(1));
    FakeFrontend::two_segments(job);
  });
  TestClient idle(port);
  idle.send(get("/health"));
  EXPECT_EQ(idle.read().status, 200);
  TestClient busy(port);
  busy.send(transcription());
  ASSERT_TRUE(eventually([&] { return frontend.num_submitted() == 1; }));

  EXPECT_FALSE(server->drain(milliseconds(50)));
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_TRUE(eventually([&] { return !TestClient(port).send("x"); }));  // nobody listens
  go = true;
  EXPECT_TRUE(server->drain(seconds(20)));
  const TestAnswer answer = busy.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_EQ(frontend.num_aborted(), 0);
}

TEST_F(CallLifeTest, DestructionAbortsWhatIsLeft) {
  start();
  frontend.set_script(stuck_after_one);
  TestClient waiting(port);
  waiting.send(transcription());
  TestClient streaming(port);
  streaming.send(transcription({{"stream", "true"}}));
  EXPECT_FALSE(streaming.read_until("One").empty());
  ASSERT_TRUE(eventually([&] { return frontend.num_submitted() == 2; }));
  server.reset();
  EXPECT_EQ(frontend.num_aborted(), 2);
  EXPECT_TRUE(waiting.closed_by_server());
}

TEST_F(CallLifeTest, EventsAfterTheServerIsGoneAreDropped) {
  start();
  const auto go = std::make_shared<std::atomic<bool>>(false);  // the script may outlive this test's body
  frontend.set_script([go](FakeJob& job) {
    while (!*go) std::this_thread::sleep_for(milliseconds(1));
    FakeFrontend::two_segments(job);
  });
  TestClient client(port);
  client.send(transcription());
  ASSERT_TRUE(eventually([&] { return frontend.num_submitted() == 1; }));
  server.reset();
  *go = true;
}

TEST_F(CallLifeTest, ClientsThatComeAndGoLeaveNothingBehind) {
  start();
  frontend.set_script([](FakeJob& job) {
    job.segment(0, 0, 1, " One");
    if (job.wait_aborted(milliseconds(2))) return job.fail(cancelled("aborted"));
    FakeFrontend::two_segments(job);
  });
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (std::size_t i = 0; i < 50; ++i) {
        TestClient client(port);
        const std::string request = transcription({{"stream", "true"}});
        const bool whole = i % 3 != t % 3;
        client.send(std::string_view(request).substr(0, whole ? request.size() : request.size() * i / 50));
        if (whole && i % 5 < 3) client.read_until("One");
        if (i % 2) client.reset();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_TRUE(eventually([&] { return metric("mstar_http_connections_open") == "mstar_http_connections_open 1"; }));
  EXPECT_EQ(metric("mstar_http_calls_in_flight"), "mstar_http_calls_in_flight 0");
}

}  // namespace
}  // namespace mstar::server
