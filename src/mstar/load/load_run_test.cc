#include "mstar/load/load_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "mstar/load/fake_completions.h"
#include "mstar/load/summary.h"

namespace mstar::load {
namespace {

LoadConfig config_for(const FakeCompletions& server) {
  LoadConfig config;
  config.url = *parse_http_url(server.url());
  config.workload = {.model = "m", .input_tokens = {4, 4}, .output_tokens = {1, 20}, .seed = 3};
  config.timeout_s = 60;
  return config;
}

std::vector<RequestRecord> run(const LoadConfig& config) {
  auto load = LoadRun::make(config);
  EXPECT_TRUE(load);
  return (*load)->run();
}

// One request whose answer the script makes; returns its record.
RequestRecord one(FakeCompletions::Script script, double timeout_s = 60) {
  const FakeCompletions server(std::move(script));
  LoadConfig config = config_for(server);
  config.timeout_s = timeout_s;
  const auto records = run(config);
  EXPECT_EQ(records.size(), 1u);
  return records.empty() ? RequestRecord{} : records.front();
}

void expect_all_well(const std::vector<RequestRecord>& records, std::size_t num) {
  ASSERT_EQ(records.size(), num);
  for (std::size_t i = 0; i < num; ++i) {
    const RequestRecord& each = records[i];
    EXPECT_EQ(each.index, i);
    EXPECT_EQ(each.failure, "") << each.message;
    EXPECT_EQ(static_cast<int>(each.piece_us.size()), each.output_tokens);
    ASSERT_TRUE(each.usage);
    EXPECT_EQ(each.usage->completion_tokens, each.output_tokens);
    EXPECT_EQ(each.usage->cached_tokens, 2);
    EXPECT_EQ(each.finish_reason, "length");
    EXPECT_TRUE(std::is_sorted(each.piece_us.begin(), each.piece_us.end()));
    EXPECT_LE(each.begin_us, each.piece_us.front());
    EXPECT_LE(each.piece_us.back(), each.end_us);
  }
}

TEST(LoadRun, ClosedLoopKeepsItsConnections) {
  const FakeCompletions server(FakeCompletions::well);
  LoadConfig config = config_for(server);
  config.num_requests = 40;
  config.concurrency = 4;
  config.num_threads = 2;
  const auto records = run(config);
  expect_all_well(records, 40);
  EXPECT_LE(server.num_connections(), 4);  // a thread that is late finds nothing left to do
  EXPECT_LE(summarise(records, 1).max_open, 4);
  std::set<std::string> bodies;
  for (const FakeRequest& each : server.requests()) bodies.insert(each.body);
  EXPECT_EQ(bodies.size(), 40u);
}

// A client that is late does not see its answers late.
TEST(LoadRun, TheKernelsTimesAreOfTheSameClock) {
  const FakeCompletions server(FakeCompletions::well);
  LoadConfig config = config_for(server);
  config.num_requests = 20;
  config.concurrency = 4;
  config.kernel_times = true;
  expect_all_well(run(config), 20);
}

TEST(LoadRun, OfflineOpensAllAtOnce) {
  std::atomic<int> waiting{0};
  const FakeCompletions server([&](const FakeRequest& request, FakeWire& wire) {
    ++waiting;
    while (waiting < 50) wire.wait(1);
    FakeCompletions::well(request, wire);
  });
  LoadConfig config = config_for(server);
  config.mode = LoadMode::offline;
  config.num_requests = 50;
  config.workload.route = CompletionRoute::chat;
  const auto records = run(config);
  expect_all_well(records, 50);
  EXPECT_EQ(summarise(records, 1).max_open, 50);
  EXPECT_EQ(server.requests().front().path, "/v1/chat/completions");
}

TEST(LoadRun, OpenLoopKeepsItsTimesWhateverTheServerDoes) {
  const FakeCompletions server([](const FakeRequest& request, FakeWire& wire) {
    wire.wait(30);  // longer than the gaps: requests overlap
    FakeCompletions::well(request, wire);
  });
  LoadConfig config = config_for(server);
  config.mode = LoadMode::open;
  config.rate_per_s = 200;
  config.num_requests = 30;
  config.num_threads = 2;
  const auto records = run(config);
  expect_all_well(records, 30);
  const auto due = poisson_arrivals(config.workload.seed, 200, 30);
  for (std::size_t i = 0; i < due.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(records[i].due_us), due[i] * 1e6, 1);
    EXPECT_GE(records[i].begin_us, records[i].due_us);
  }
  EXPECT_GT(summarise(records, 1).max_open, 1);
}

TEST(LoadRun, AStreamInSmallPiecesIsTheSame) {
  const RequestRecord record = one([](const FakeRequest& request, FakeWire& wire) {
    wire.piece_bytes = 1;
    FakeCompletions::well(request, wire);
  });
  EXPECT_EQ(record.failure, "") << record.message;
  EXPECT_EQ(static_cast<int>(record.piece_us.size()), record.output_tokens);
}

TEST(LoadRun, EventsCutByChunksAndKeptAliveByComments) {
  const RequestRecord record = one([](const FakeRequest&, FakeWire& wire) {
    wire.begin_stream();
    wire.chunk(": keep-alive\r\n\r\nda");
    wire.chunk("ta: {\"choices\":[{\"text\":\"a\"}]}\r");
    wire.chunk("\n\r\ndata: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\ndata: [DO");
    wire.chunk("NE]\n\n");
    wire.end_stream();
  });
  EXPECT_EQ(record.failure, "") << record.message;
  EXPECT_EQ(record.piece_us.size(), 2u);
  EXPECT_FALSE(record.usage);
  EXPECT_EQ(record.finish_reason, "stop");
}

TEST(LoadRun, FailuresHaveAKind) {
  const auto stream = [](std::string_view data) {
    return [data](const FakeRequest&, FakeWire& wire) {
      wire.begin_stream();
      wire.event(R"({"choices":[{"text":"a"}]})");
      wire.event(data);
      wire.end_stream();
    };
  };
  RequestRecord record = one([](const FakeRequest&, FakeWire& wire) {
    wire.answer(503, "application/json", R"({"error":{"message":"no room"}})");
  });
  EXPECT_EQ(record.failure, "http 503");
  EXPECT_EQ(record.message, "no room");
  record = one(stream(R"({"error":{"message":"a worker died"}})"));
  EXPECT_EQ(record.failure, "error in stream");
  EXPECT_EQ(record.message, "a worker died");
  EXPECT_EQ(one(stream("what")).failure, "malformed stream");
  EXPECT_EQ(one(stream(R"({"choices":[]})")).failure, "cut stream");
  record = one([](const FakeRequest&, FakeWire& wire) {
    wire.begin_stream();
    wire.event(R"({"choices":[{"text":"a"}]})");
    wire.close();
  });
  EXPECT_EQ(record.failure, "broken stream");
  EXPECT_EQ(record.piece_us.size(), 1u);
  EXPECT_EQ(one([](const FakeRequest&, FakeWire& wire) { wire.close(); }).failure, "no answer");
  EXPECT_EQ(one([](const FakeRequest&, FakeWire& wire) { wire.answer(200, "text/html", "hi"); }).failure, "no stream");
  EXPECT_EQ(one([](const FakeRequest&, FakeWire& wire) { wire.send("hello\r\n\r\n"); }).failure, "malformed http");
  EXPECT_EQ(one([](const FakeRequest&, FakeWire& wire) {
              wire.begin_stream();
              wire.event("[DONE]");
              wire.end_stream();
            }).failure,
            "empty");
}

TEST(LoadRun, ABrokenStreamThatGoesOnIsGivenUp) {
  const RequestRecord record = one([](const FakeRequest&, FakeWire& wire) {
    wire.begin_stream();
    wire.event("what");
    wire.wait(60'000);
  });
  EXPECT_EQ(record.failure, "malformed stream");
}

TEST(LoadRun, SlowRequestsTimeOutAndTheNextOnesGoOn) {
  std::atomic<int> num{0};
  const FakeCompletions server([&](const FakeRequest& request, FakeWire& wire) {
    if (num++ == 0) wire.wait(60'000);
    FakeCompletions::well(request, wire);
  });
  LoadConfig config = config_for(server);
  config.num_requests = 3;
  config.timeout_s = 0.3;
  const auto records = run(config);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].failure, "timeout");
  EXPECT_NE(records[2].failure, "no answer");
}

TEST(LoadRun, ADeadKeptConnectionIsReplaced) {
  const FakeCompletions server([](const FakeRequest& request, FakeWire& wire) {
    FakeCompletions::well(request, wire);
    wire.close();  // without having said so
  });
  LoadConfig config = config_for(server);
  config.num_requests = 10;
  expect_all_well(run(config), 10);
}

TEST(LoadRun, NobodyThere) {
  LoadConfig config;
  {
    const FakeCompletions server(FakeCompletions::well);
    config = config_for(server);
  }
  config.num_requests = 3;
  for (const RequestRecord& each : run(config)) EXPECT_EQ(each.failure, "connect");
}

TEST(LoadRun, StopEndsEverythingAndKeepsWhatIsDone) {
  std::atomic<int> num{0};
  const FakeCompletions server([&](const FakeRequest& request, FakeWire& wire) {
    if (num++ < 2) return FakeCompletions::well(request, wire);
    wire.begin_stream();
    wire.event(R"({"choices":[{"text":"a"}]})");
    wire.wait(60'000);
  });
  LoadConfig config = config_for(server);
  config.num_requests = 100;
  config.concurrency = 3;
  config.num_threads = 2;
  auto load = LoadRun::make(config);
  ASSERT_TRUE(load);
  std::thread stopper([&] {
    while ((*load)->progress().num_ended < 2 || (*load)->progress().num_open < 3)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    (*load)->stop();
  });
  const Summary s = summarise((*load)->run(), 1);
  stopper.join();
  EXPECT_EQ(s.num_requests, 2);
  EXPECT_EQ(s.num_interrupted, 3);
  EXPECT_EQ(s.num_failed, 0);
}

}  // namespace
}  // namespace mstar::load
