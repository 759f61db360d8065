// Bodies that take their time to be read: other connections go on, the client may leave, its time-out counts.
#include <gmock/gmock.h>

#include <new>
#include <nlohmann/json.hpp>

#include "mstar/server/server_fixture.h"

namespace mstar::server {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

// A wait that others end. Static in each test, and who waits keeps what it waits on: a server thread may come to it
// when the test is over.
class Gate {
 public:
  void open() {
    std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->opened.notify_all();
  }
  bool wait(seconds most = seconds(20)) {
    const std::shared_ptr<State> state = state_;
    std::unique_lock lock(state->mutex);
    ++state->num_waiting;
    return state->opened.wait_for(lock, most, [&] { return state->open; });
  }
  int num_waiting() {
    std::lock_guard lock(state_->mutex);
    return state_->num_waiting;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
    int num_waiting = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct LongWorkTest : ServerFixture {
  LongWorkTest() {
    frontend.set_script([](FakeJob& job) {
      job.text("Hi");
      job.end(decl::Finish::stop);
    });
  }
  static std::string long_text() { return std::string(1 << 20, 'x'); }
  static std::string tokenize(const std::string& prompt) {
    return post("/tokenize", "application/json", R"({"model":"lab/fake-llm","prompt":")" + prompt + "\"}");
  }
  static std::string detokenize(std::size_t num_tokens) {
    std::string tokens = "120";
    for (std::size_t i = 1; i < num_tokens; ++i) tokens += ",120";
    return post("/detokenize", "application/json", R"({"model":"lab/fake-llm","tokens":[)" + tokens + "]}");
  }
  static std::string chat(const std::string& content, const std::string& more = {}) {
    return post("/v1/chat/completions", "application/json",
                R"({"model":"lab/fake-llm","messages":[{"role":"user","content":")" + content + "\"}]" + more + "}");
  }
  static std::string error_code(const TestAnswer& answer) { return json::parse(answer.body)["error"]["code"]; }
  bool nothing_is_left() {
    return eventually([&] { return metric("mstar_http_calls_in_flight") == "mstar_http_calls_in_flight 0"; });
  }
};

TEST_F(LongWorkTest, TokenizingDoesNotHoldUpOthers) {
  ServerConfig config;
  config.num_io_threads = 1;
  start(config);
  static Gate gate;
  frontend.before_codec([&] { gate.wait(); });
  TestClient cutting(port), joining(port);
  cutting.send(tokenize(long_text()));
  joining.send(detokenize(10'000));
  ASSERT_TRUE(eventually([&] { return gate.num_waiting() == 2; }));
  EXPECT_EQ(ask(port, get("/health")).status, 200);
  EXPECT_EQ(ask(port, chat("short")).status, 200);
  gate.open();
  EXPECT_EQ(json::parse(cutting.read().body)["count"], 1 << 20);
  EXPECT_EQ(json::parse(joining.read().body)["prompt"], std::string(10'000, 'x'));
  // The connections go on.
  cutting.send(get("/health"));
  EXPECT_EQ(cutting.read().status, 200);
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(LongWorkTest, WhatLibrariesThrowIsAnAnswer) {
  start();
  frontend.before_codec([] { throw std::bad_alloc(); });
  frontend.before_submit([](const CallRequests&) { throw std::bad_alloc(); });
  TestClient client(port);
  for (const std::string& request : {tokenize("short"), tokenize(long_text()), detokenize(3), detokenize(10'000),
                                     chat("short"), chat(long_text())}) {
    client.send(request);
    const TestAnswer answer = client.read();
    EXPECT_EQ(answer.status, 500) << request.substr(0, 40);
    EXPECT_EQ(error_code(answer), "internal_error");
  }
  // A client that has closed its sending side is told, too.
  for (const std::size_t num_ids : {std::size_t{2}, std::size_t{10'000}}) {
    std::string ids = "72";
    for (std::size_t i = 1; i < num_ids; ++i) ids += ",72";
    TestClient closing(port);
    closing.send(
        post("/v1/completions", "application/json", R"({"model":"lab/fake-llm","echo":true,"prompt":[)" + ids + "]}"));
    closing.half_close();
    const TestAnswer answer = closing.read();
    EXPECT_TRUE(answer.status == 500 || answer.status == 0) << answer.status;  // by what came first
  }
  EXPECT_EQ(ask(port, get("/health")).status, 200);
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(LongWorkTest, AClientThatLeavesEndsTheReadingOfItsPrompts) {
  start();
  std::atomic<int> num_submits{0}, num_given_up{0};
  frontend.before_submit([&](const CallRequests& call) {
    ++num_submits;
    for (int i = 0; i < 4000 && call.wanted(); ++i) std::this_thread::sleep_for(milliseconds(5));
    if (!call.wanted()) ++num_given_up;
  });
  for (const char* more : {"", R"(,"stream":true,"n":9)"}) {
    TestClient client(port);
    client.send(chat(long_text(), more));
    const int before = num_given_up;
    ASSERT_TRUE(eventually([&] { return num_submits > before; }));
    client.close();
    EXPECT_TRUE(eventually([&] { return num_given_up > before; }));
  }
  EXPECT_EQ(frontend.num_submitted(), 0);
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(LongWorkTest, TheTimeOutCountsTheReading) {
  ServerConfig config;
  config.request_timeout = milliseconds(150);
  start(config);
  static Gate gate;
  frontend.before_submit([&](const CallRequests& call) {
    while (call.wanted()) std::this_thread::sleep_for(milliseconds(5));
  });
  frontend.before_codec([&] { gate.wait(); });
  TestClient client(port);
  for (const std::string& request :
       {chat(long_text()), chat(long_text(), R"(,"stream":true)"), tokenize(long_text())}) {
    client.send(request);
    const TestAnswer answer = client.read();
    EXPECT_EQ(answer.status, 504);
    EXPECT_EQ(error_code(answer), "request_timeout");
    EXPECT_THAT(answer.body, HasSubstr("for its turn"));
  }
  gate.open();
  EXPECT_EQ(frontend.num_submitted(), 0);
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(LongWorkTest, AStreamIsKeptOpenWhileItsPromptIsRead) {
  ServerConfig config;
  config.sse_keep_alive = milliseconds(20);
  start(config);
  static Gate gate;
  frontend.before_submit([&](const CallRequests&) { gate.wait(); });
  TestClient client(port);
  client.send(chat(long_text(), R"(,"stream":true)"));
  EXPECT_FALSE(client.read_until(": keep-alive\n\n").empty());
  gate.open();
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("\"content\":\"Hi\""));
  // What is refused then is the stream's last event.
  TestClient refused(port);
  frontend.refuse_with(exhausted("the queue is full"));
  Gate second;
  frontend.before_submit([&](const CallRequests&) { second.wait(); });
  refused.send(chat(long_text(), R"(,"stream":true)"));
  EXPECT_FALSE(refused.read_until(": keep-alive\n\n").empty());
  second.open();
  EXPECT_THAT(refused.read_until("the queue is full"), HasSubstr("data: {\"error\":"));
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(LongWorkTest, AQueuedStreamIsKeptOpenAndTimesOut) {
  ServerConfig config;
  config.sse_keep_alive = milliseconds(20);
  config.request_timeout = milliseconds(300);
  start(config);
  frontend.set_script([](FakeJob& job) { job.wait_aborted(seconds(20)); });
  const TestAnswer stream = ask(port, chat("short", R"(,"stream":true)"));
  EXPECT_THAT(stream.body, StartsWith(": keep-alive\n\n"));
  EXPECT_THAT(stream.body, HasSubstr("request_timeout"));
  EXPECT_THAT(stream.body, HasSubstr("for its turn"));
  EXPECT_TRUE(stream.complete);
  const TestAnswer whole = ask(port, chat("short"));
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(error_code(whole), "request_timeout");
  EXPECT_TRUE(eventually([&] { return frontend.num_aborted() == 2; }));
}

}  // namespace
}  // namespace mstar::server
